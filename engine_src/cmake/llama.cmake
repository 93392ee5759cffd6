# Brings in llama.cpp as static libraries, with everything off that is not the library itself.
set(BUILD_SHARED_LIBS OFF CACHE BOOL "" FORCE)
foreach(option
        LLAMA_BUILD_COMMON LLAMA_BUILD_TESTS LLAMA_BUILD_TOOLS LLAMA_BUILD_EXAMPLES LLAMA_BUILD_SERVER
        LLAMA_BUILD_APP LLAMA_BUILD_UI LLAMA_CURL LLAMA_OPENSSL LLAMA_ALL_WARNINGS
        GGML_CCACHE GGML_OPENMP GGML_NATIVE GGML_BACKEND_DL GGML_CPU_ALL_VARIANTS)
    set(${option} OFF CACHE BOOL "" FORCE)
endforeach()

# Kernels. One set per build: ggml's choice between CPU variants at run time needs shared libraries
# (GGML_BACKEND_DL), and the engine is one executable that is copied to targets. The level is checked against
# the CPU at start. AMX stays off at every level: on some virtual machines it is advertised and then dies.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(moe_sse ON)
    set(moe_avx2 ON)
    set(moe_avx512 OFF)
    if(MOE_CPU_LEVEL STREQUAL "baseline")
        set(moe_avx2 OFF)
        set(moe_sse OFF)
    elseif(MOE_CPU_LEVEL STREQUAL "avx512")
        set(moe_avx512 ON)
    endif()
    set(GGML_SSE42 ${moe_sse} CACHE BOOL "" FORCE)
    foreach(feature AVX AVX2 FMA F16C BMI2)
        set(GGML_${feature} ${moe_avx2} CACHE BOOL "" FORCE)
    endforeach()
    foreach(feature AVX512 AVX512_VNNI)
        set(GGML_${feature} ${moe_avx512} CACHE BOOL "" FORCE)
    endforeach()
    foreach(feature AVX_VNNI AVX512_VBMI AVX512_BF16 AMX_TILE AMX_INT8 AMX_BF16)
        set(GGML_${feature} OFF CACHE BOOL "" FORCE)
    endforeach()
elseif(MOE_CPU_LEVEL MATCHES "^armv8" AND NOT MOE_ZIG)
    set(GGML_CPU_ARM_ARCH ${MOE_CPU_LEVEL} CACHE STRING "" FORCE)
endif()

# llama.cpp asks git for its commit. As a registry archive it has none, and git would answer with the commit of
# whatever repository surrounds it, rebuilding ggml at each of our commits: let it ask a program that always fails.
find_program(MOE_NO_GIT false REQUIRED)
set(GIT_EXECUTABLE ${MOE_NO_GIT} CACHE FILEPATH "" FORCE)
set(GIT_EXE ${MOE_NO_GIT} CACHE FILEPATH "" FORCE)
add_subdirectory(${MOE_LLAMA_DIR} ${CMAKE_BINARY_DIR}/llama EXCLUDE_FROM_ALL)

# zig knows no -march of this kind. Only ggml's kernels get the flag, as they alone get -march: the rest must
# run on any CPU of the architecture to say what this one lacks, and zig would build its C library anew for the level.
if(MOE_CPU_LEVEL MATCHES "^armv8" AND MOE_ZIG)
    set(moe_mcpu ${MOE_CPU_LEVEL})
    string(REPLACE "armv8-a" "generic+v8a" moe_mcpu ${moe_mcpu})
    string(REPLACE "armv8.2-a" "generic+v8_2a" moe_mcpu ${moe_mcpu})
    string(REPLACE "+fp16" "+fullfp16" moe_mcpu ${moe_mcpu})
    target_compile_options(ggml-cpu PRIVATE -mcpu=${moe_mcpu})
endif()
