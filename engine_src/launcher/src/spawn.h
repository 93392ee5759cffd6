// Starting the program: its own process group, clean environment, limits, and word of an exec that failed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unique_fd.h"

namespace launcher {

struct SpawnRequest {
    std::vector<std::string> argv;
    std::vector<std::string> env;  // K=V: added to PATH, HOME and LANG
    std::string cwd;               // empty: the launcher's
    std::optional<int64_t> data_limit_bytes;
    int cgroup_entrance = -1;  // cgroup.procs, open for writing, of the cgroup to be in; negative: the launcher's
    int stdout_fd = -1;
    int stderr_fd = -1;
};

class SpawnedProgram {
public:
    // Throws std::runtime_error when no process could be made at all.
    explicit SpawnedProgram(const SpawnRequest & request);

    enum class Progress { starting, running, failed };
    // Does not wait: exec can take its time on a slow or broken file system.
    Progress progress();

    pid_t pid() const { return pid_; }
    const std::string & failure() const { return failure_; }  // words, once progress() says failed

private:
    pid_t pid_ = -1;
    UniqueFd report_;
    Progress progress_ = Progress::starting;
    std::string program_;
    std::string cwd_;
    std::string failure_;
};

// The environment of the program, sorted out: PATH, HOME and LANG, then what was asked for.
std::vector<std::string> program_environment(const std::vector<std::string> & asked);

// The files to try for a program name, by the PATH of that environment.
std::vector<std::string> program_candidates(const std::string & name, const std::vector<std::string> & environment);

// Nothing that was open before this call is inherited by a program started later.
void close_all_on_exec();

}  // namespace launcher
