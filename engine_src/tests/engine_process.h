// Runs the real moe-engine and keeps what it said.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

struct EngineResult {
    int code = -1;  // exit code, or 128 + signal
    std::string out;
    std::string err;

    // The line that the contract promises for a failure; empty if there is none.
    std::string error_line() const {
        std::istringstream lines(err);
        const std::string prefix = "moe-engine: error: ";
        std::string found;
        for (std::string line; std::getline(lines, line);) {
            if (line.rfind(prefix, 0) == 0) {
                found = line.substr(prefix.size());
            }
        }
        return found;
    }
};

inline std::string file_contents(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

class EngineProcess {
public:
    explicit EngineProcess(std::vector<std::string> args) : args_(std::move(args)) {}

    EngineProcess & limit_data(uint64_t bytes) {
        data_limit_ = bytes;
        return *this;
    }
    EngineProcess & stdout_to(const std::string & path) {
        out_path_ = path;
        return *this;
    }

    EngineProcess & without_stdout() {
        close_stdout_ = true;
        return *this;
    }

    // `scratch`: a path prefix for the captured streams.
    EngineResult run(const std::string & scratch) const {
        const std::string out = out_path_.empty() ? scratch + ".out" : out_path_;
        const std::string err = scratch + ".err";
        std::vector<char *> argv;
        std::string program = MOE_ENGINE_BINARY;
        argv.push_back(program.data());
        std::vector<std::string> args = args_;
        for (std::string & arg : args) {
            argv.push_back(arg.data());
        }
        argv.push_back(nullptr);

        const pid_t child = fork();
        if (child == 0) {
            redirect(out, STDOUT_FILENO);
            redirect(err, STDERR_FILENO);
            if (close_stdout_) {
                close(STDOUT_FILENO);
            }
            if (data_limit_ > 0) {
                const rlimit limit = {data_limit_, data_limit_};
                setrlimit(RLIMIT_DATA, &limit);
            }
            execv(argv[0], argv.data());
            _exit(126);
        }
        int status = 0;
        waitpid(child, &status, 0);
        EngineResult result;
        result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        result.out = out_path_.empty() ? file_contents(out) : "";
        result.err = file_contents(err);
        return result;
    }

private:
    static void redirect(const std::string & path, int fd) {
        const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (file < 0 || dup2(file, fd) < 0) {
            _exit(125);
        }
    }

    std::vector<std::string> args_;
    std::string out_path_;
    uint64_t data_limit_ = 0;
    bool close_stdout_ = false;
};

// The value of a key in one line of the engine's JSON, as text without quotes; the first occurrence counts.
inline std::string json_value(const std::string & line, const std::string & key) {
    const std::string pattern = "\"" + key + "\":";
    size_t at = line.find(pattern);
    if (at == std::string::npos) {
        return "(absent)";
    }
    at += pattern.size();
    if (line[at] == '"') {
        return line.substr(at + 1, line.find('"', at + 1) - at - 1);
    }
    return line.substr(at, line.find_first_of(",}", at) - at);
}

inline std::vector<std::string> lines_of(const std::string & text) {
    std::istringstream stream(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) {
        lines.push_back(line);
    }
    return lines;
}
