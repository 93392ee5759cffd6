#include "spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "data_limit.h"
#include "files.h"
#include "signals.h"

namespace launcher {

namespace {

enum class Step : int { group, cgroup, limit, directory, streams, exec };

struct Failure {
    Step step;
    int error;
};

std::vector<char *> pointers(std::vector<std::string> & texts) {
    std::vector<char *> list;
    for (std::string & text : texts) {
        list.push_back(text.data());
    }
    list.push_back(nullptr);
    return list;
}

[[noreturn]] void report_and_exit(int report_fd, Step step, int error) {
    const Failure failure{step, error};
    const ssize_t wrote = write(report_fd, &failure, sizeof failure);
    _exit(wrote == static_cast<ssize_t>(sizeof failure) ? 126 : 127);
}

// In the child. Only system calls from here: all text was prepared before the fork.
[[noreturn]] void become_program(const SpawnRequest & request, const std::vector<char *> & candidates, char ** argv,
                                 char ** env, int null_fd, int report_fd, pid_t launcher) {
    // Should the launcher be killed outright, the program must not live on; the race is checked afterwards.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) {
        _exit(127);
    }
    if (setpgid(0, 0) != 0) {
        report_and_exit(report_fd, Step::group, errno);
    }
    // Before it has memory of its own, so that all of it is charged there.
    if (request.cgroup_entrance >= 0 && write(request.cgroup_entrance, "0", 1) != 1) {
        report_and_exit(report_fd, Step::cgroup, errno);
    }
    if (!request.cwd.empty() && chdir(request.cwd.c_str()) != 0) {
        report_and_exit(report_fd, Step::directory, errno);
    }
    if (dup2(null_fd, STDIN_FILENO) < 0 || dup2(request.stdout_fd, STDOUT_FILENO) < 0 ||
        dup2(request.stderr_fd, STDERR_FILENO) < 0) {
        report_and_exit(report_fd, Step::streams, errno);
    }
    if (request.data_limit_bytes) {
        if (const int error = set_data_limit(*request.data_limit_bytes)) {
            report_and_exit(report_fd, Step::limit, error);
        }
    }
    reset_signals();
    int error = ENOENT;
    for (char * const candidate : candidates) {
        if (candidate != nullptr) {
            execve(candidate, argv, env);
            // Found but not usable says more than not found.
            error = errno == ENOENT || errno == ENOTDIR ? error : errno;
        }
    }
    report_and_exit(report_fd, Step::exec, error);
}

}  // namespace

std::vector<std::string> program_environment(const std::vector<std::string> & asked) {
    const auto inherited = [](const char * name, const char * otherwise) {
        const char * const value = std::getenv(name);
        return std::string(name) + "=" + (value != nullptr ? value : otherwise);
    };
    std::vector<std::string> environment = {inherited("PATH", "/usr/local/bin:/usr/bin:/bin:/system/bin"),
                                            inherited("HOME", "/"), "LANG=C.UTF-8"};
    for (const std::string & entry : asked) {
        const std::string name = entry.substr(0, entry.find('=') + 1);
        bool replaced = false;
        for (std::string & present : environment) {
            if (present.compare(0, name.size(), name) == 0) {
                present = entry;
                replaced = true;
            }
        }
        if (!replaced) {
            environment.push_back(entry);
        }
    }
    return environment;
}

std::vector<std::string> program_candidates(const std::string & name, const std::vector<std::string> & environment) {
    if (name.find('/') != std::string::npos) {
        return {name};
    }
    std::string path;
    for (const std::string & entry : environment) {
        if (entry.rfind("PATH=", 0) == 0) {
            path = entry.substr(5);
        }
    }
    std::vector<std::string> candidates;
    for (size_t at = 0; at <= path.size();) {
        const size_t end = std::min(path.find(':', at), path.size());
        if (end > at) {
            candidates.push_back(path.substr(at, end - at) + "/" + name);
        }
        at = end + 1;
    }
    return candidates;
}

SpawnedProgram::SpawnedProgram(const SpawnRequest & request) : program_(request.argv.front()), cwd_(request.cwd) {
    std::vector<std::string> argv_text = request.argv;
    std::vector<std::string> env_text = program_environment(request.env);
    std::vector<std::string> candidate_text = program_candidates(program_, env_text);
    const std::vector<char *> argv = pointers(argv_text);
    const std::vector<char *> env = pointers(env_text);
    const std::vector<char *> candidates = pointers(candidate_text);

    const UniqueFd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    int ends[2];
    if (!null_fd || pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        throw std::runtime_error(std::string("cannot prepare the start: ") + std::strerror(errno));
    }
    report_.reset(ends[0]);
    const UniqueFd report_end(ends[1]);

    const pid_t launcher = getpid();
    pid_ = fork();
    if (pid_ < 0) {
        throw std::runtime_error(std::string("cannot fork: ") + std::strerror(errno));
    }
    if (pid_ == 0) {
        become_program(request, candidates, const_cast<char **>(argv.data()), const_cast<char **>(env.data()),
                       null_fd.get(), report_end.get(), launcher);
    }
    // In both processes, so that the group exists for whichever goes on first.
    setpgid(pid_, pid_);
}

SpawnedProgram::Progress SpawnedProgram::progress() {
    if (progress_ != Progress::starting) {
        return progress_;
    }
    Failure failure{};
    const ssize_t got = read(report_.get(), &failure, sizeof failure);
    if (got < 0) {
        return progress_;  // nothing yet
    }
    // The pipe closes on a successful exec, and says why otherwise.
    progress_ = got == static_cast<ssize_t>(sizeof failure) ? Progress::failed : Progress::running;
    report_.reset();
    if (progress_ == Progress::failed) {
        const std::string why = std::string(": ") + std::strerror(failure.error);
        switch (failure.step) {
            case Step::group: failure_ = "cannot make a process group" + why; break;
            case Step::cgroup: failure_ = "cannot enter the memory cgroup" + why; break;
            case Step::limit: failure_ = "cannot set RLIMIT_DATA" + why; break;
            case Step::directory: failure_ = "cannot enter " + cwd_ + why; break;
            case Step::streams: failure_ = "cannot redirect the output" + why; break;
            case Step::exec: failure_ = "cannot start " + program_ + why; break;
        }
    }
    return progress_;
}

void close_all_on_exec() {
    for (const std::string & name : list_names("/proc/self/fd", "")) {
        const auto fd = parse_int(name);
        if (fd && *fd > STDERR_FILENO) {
            fcntl(static_cast<int>(*fd), F_SETFD, FD_CLOEXEC);
        }
    }
}

}  // namespace launcher
