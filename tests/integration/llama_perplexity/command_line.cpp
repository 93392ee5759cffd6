// In place of llama.cpp's arg.cpp: MODEL TEXT N_CTX N_BATCH, on one thread, without repacked weights. All else keeps the
// defaults that arg.cpp would leave.
#include "arg.h"
#include "common.h"
#include "log.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

bool common_params_parse(int argc, char ** argv, common_params & params, llama_example, void (*)(int, char **)) {
    if (argc != 5) {
        return false;
    }
    params.model.path = argv[1];
    std::ifstream file(argv[2], std::ios::binary);
    params.prompt.assign(std::istreambuf_iterator<char>(file), {});
    if (!params.prompt.empty() && params.prompt.back() == '\n') {
        params.prompt.pop_back();
    }
    params.n_ctx = std::atoi(argv[3]);
    params.n_batch = params.n_ubatch = std::atoi(argv[4]);
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1;
    params.no_extra_bufts = true;
    // The log is written by a thread that nobody waits for: its last lines, the result, would sometimes be lost.
    std::atexit([] { common_log_pause(common_log_main()); });
    return true;
}

// Of a file that CMake generates, for a line of the log.
int llama_build_number() { return 0; }
const char * llama_commit() { return "pinned"; }
const char * llama_compiler() { return ""; }
const char * llama_build_target() { return ""; }
const char * llama_build_info() { return "pinned"; }
