#include "outputs.h"

#include "dump_files.h"
#include "error.h"
#include "report.h"

#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

namespace moe {

namespace {

// Opening truncates: never do that to what is read, by whatever name.
void spare_inputs(const std::string & path, const char * what, const Options & options) {
    struct stat output {};
    if (stat(path.c_str(), &output) != 0) {
        return;
    }
    const std::pair<const char *, std::string> inputs[] = {{"model", options.model},
                                                           {"prompt", options.prompt_file.value_or("")},
                                                           {"forced routes", options.forced_routes.value_or("")},
                                                           {"given text", options.given_text.value_or("")},
                                                           {"scored text", options.ppl_file.value_or("")}};
    for (const auto & [name, input] : inputs) {
        struct stat read {};
        if (stat(input.c_str(), &read) == 0 && read.st_dev == output.st_dev && read.st_ino == output.st_ino) {
            throw Error(ExitCode::usage, std::string("the ") + what + " file is the " + name);
        }
    }
}

// The same for every name of a file: links followed, also one that leads nowhere yet, because opening makes what it names.
std::string file_key(const std::string & path) {
    namespace fs = std::filesystem;
    struct stat file {};
    if (stat(path.c_str(), &file) == 0) {
        return std::to_string(file.st_dev) + ":" + std::to_string(file.st_ino);
    }
    std::error_code error;
    fs::path target = fs::absolute(path, error);
    constexpr int kMostLinks = 40;
    for (int i = 0; i < kMostLinks && fs::is_symlink(target, error); ++i) {
        target = target.parent_path() / fs::read_symlink(target, error);
    }
    return fs::weakly_canonical(target, error).string();
}

// Nor to another output. Devices can take several.
void spare_outputs(const Options & options) {
    namespace fs = std::filesystem;
    std::vector<std::pair<const char *, std::optional<std::string>>> outputs = {
        {"--csv", options.csv},
        {"--telemetry", options.telemetry},
        {"--route-trace", options.route_trace},
        {"--io-trace", options.io_trace},
        {"--compute-trace", options.compute_trace},
        {"--stats", options.stats}};
    if (options.moe_dump) {
        for (const std::string & path : dump_paths(*options.moe_dump)) {
            outputs.emplace_back("--moe-dump", path);
        }
    }
    std::map<std::string, const char *> taken;
    for (const auto & [flag, path] : outputs) {
        std::error_code error;
        if (!path || (fs::exists(*path, error) && !fs::is_regular_file(*path, error))) {
            continue;
        }
        const auto [other, fresh] = taken.emplace(file_key(*path), flag);
        if (!fresh) {
            throw Error(ExitCode::usage,
                        std::string(other->second) + " and " + flag + " name the same file: give each its own");
        }
    }
}

}  // namespace

void check_outputs(const Options & options) {
    spare_outputs(options);
    if (options.stats) {
        spare_inputs(*options.stats, "statistics", options);
    }
    for (const auto & trace : {options.route_trace, options.io_trace, options.compute_trace}) {
        if (trace) {
            spare_inputs(*trace, "trace", options);
        }
    }
    if (options.moe_dump) {
        for (const std::string & path : dump_paths(*options.moe_dump)) {
            spare_inputs(path, "dump's", options);
        }
    }
    if (options.csv) {
        spare_inputs(*options.csv, "CSV", options);
    }
    if (options.telemetry) {
        spare_inputs(*options.telemetry, "telemetry", options);
    }
}

Outputs::Outputs(const Options & options) : progress_(options.progress), n_predict_(options.n_predict) {
    check_outputs(options);
    if (options.csv) {
        csv_.emplace(*options.csv, "CSV");
        csv_->write(csv_header());
    }
    if (options.telemetry) {
        telemetry_.emplace(*options.telemetry, "telemetry");
    }
}

void Outputs::event(const std::string & line) {
    if (telemetry_) {
        telemetry_->write(line);
    }
}

void Outputs::token(uint64_t index, llama_token id, const std::string & bytes, const CallCost & cost) {
    if (csv_) {
        csv_->write(csv_row(index, cost));
    }
    event(token_line(index, id, bytes, cost));
    if (progress_) {
        std::fprintf(stderr, "progress %llu %d %.3f\n", static_cast<unsigned long long>(index + 1), n_predict_,
                     cost.wall_ms);
    }
}

void Outputs::close() {
    if (csv_) {
        csv_->close();
    }
    if (telemetry_) {
        telemetry_->close();
    }
}

}  // namespace moe
