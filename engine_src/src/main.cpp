#include "cpu_level.h"
#include "environment.h"
#include "error.h"
#include "options.h"
#include "process.h"
#include "run.h"
#include "session.h"
#include "version.h"

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace {

int fail(moe::ExitCode code, const std::string & message) {
    std::fprintf(stderr, "moe-engine: error: %s\n", message.c_str());
    return static_cast<int>(code);
}

int run_command_line(int argc, char ** argv) {
    const std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
    const moe::Options options = moe::parse_options(args, std::thread::hardware_concurrency(), moe::epq_variables(environ));
    if (options.help) {
        moe::write_stdout(moe::help_text());
        return 0;
    }
    if (options.version) {
        moe::write_stdout(moe::version_line() + "\n");
        return 0;
    }
    moe::require_cpu();
    try {
        return options.session ? moe::run_session(options) : moe::run(options);
    } catch (const moe::Error & error) {
        throw moe::Error(error.code(), moe::name_variables(error.what(), options.from_variables));
    }
}

}  // namespace

int main(int argc, char ** argv) {
    moe::prepare_process();
    try {
        return run_command_line(argc, argv);
    } catch (const moe::Error & error) {
        return fail(error.code(), error.what());
    } catch (const std::bad_alloc &) {
        return fail(moe::ExitCode::memory, "out of memory in spite of the plan; --plan-memory shows what was expected");
    } catch (const std::exception & error) {
        return fail(moe::ExitCode::other, error.what());
    }
}
