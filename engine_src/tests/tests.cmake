# One program a file; they know the engine and the sanitizer that they are built with.
file(GLOB engine_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/test_*.cpp)
if(MOE_SANITIZE STREQUAL "thread")
    # parses command lines by the hundred thousand, in one thread, and most are refused by an exception
    list(FILTER engine_tests EXCLUDE REGEX "/test_option_pairs\\.cpp$")
endif()
foreach(source ${engine_tests})
    get_filename_component(name ${source} NAME_WE)
    moe_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE moe_core)
    target_compile_definitions(${name} PRIVATE
        MOE_ENGINE_BINARY="$<TARGET_FILE:moe-engine>" MOE_SANITIZE_NAME="${MOE_SANITIZE}")
    add_dependencies(${name} moe-engine)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 1800)
    if(name MATCHES "^test_(pager|foresight|perplexity|eviction_gates|streaming_gates|option_pairs)$")
        # the longest first: on a machine that has run none yet, the last of them would run alone
        set_tests_properties(${name} PROPERTIES COST 10)
    endif()
endforeach()
