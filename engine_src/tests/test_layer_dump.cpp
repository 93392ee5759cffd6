// --moe-dump: the same bytes however experts come into memory, nothing changed by looking, and what cannot be dumped is
// refused.
#include "check.h"
#include "engine_process.h"
#include "temp_dir.h"
#include "tiny_model.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

using Args = std::vector<std::string>;

const Args kNames = {"input", "router_input", "logits", "probs", "ids", "weights", "output", "meta"};
constexpr size_t kPrompt = 19;  // bytes, hence tokens
constexpr size_t kDecode = 5;

class Bench {
public:
    explicit Bench(tiny::Arch arch, uint32_t n_expert_used = 2) {
        model_.arch = arch;
        model_.n_layer = 3;
        model_.n_expert_used = n_expert_used;
        model_.expert_type = GGML_TYPE_Q8_0;
        path_ = tiny::write(model_, dir_.file("m"));
    }

    EngineResult run(const Args & flags) const {
        Args args = {"-m", path_, "-p", "nineteen characters", "-n", std::to_string(kDecode), "-c", "64", "-b", "8",
                     "-t", "1", "--no-eog", "--logits-digest", "--telemetry", dir_.file("t")};
        args.insert(args.end(), flags.begin(), flags.end());
        return EngineProcess(args).run(dir_.file("run"));
    }

    // The digest of all logits, from a run that must have worked.
    std::string digest(const Args & flags) const {
        const EngineResult result = run(flags);
        if (result.code != 0) {
            std::fprintf(stderr, "  %s", result.err.c_str());
        }
        CHECK(result.code == 0);
        return json_value(lines_of(file_contents(dir_.file("t"))).back(), "logits_sha256");
    }

    // All files of layer 1's dump, by name.
    std::map<std::string, std::string> dump(const Args & flags, uint32_t layer = 1) const {
        const std::string k = std::to_string(layer);
        Args args = {"--moe-dump", "il=" + k + ":" + dir_.file("d")};
        args.insert(args.end(), flags.begin(), flags.end());
        const std::string found = digest(args);
        std::map<std::string, std::string> files;
        for (const std::string & name : kNames) {
            files[name] = file_contents(dir_.file("d." + name + "." + k));
            CHECK(!files[name].empty());
            CHECK(unlink(dir_.file("d." + name + "." + k).c_str()) == 0);
        }
        files["logits of the model"] = found;
        return files;
    }

    const std::string & path() const { return path_; }
    const tiny::Model & model() const { return model_; }
    std::string file(const std::string & name) const { return dir_.file(name); }

private:
    TempDir dir_;
    tiny::Model model_;
    std::string path_;
};

template <class T>
std::vector<T> numbers(const std::string & bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
}

const std::vector<Args> kStreaming = {
    {"--moe-stream"},
    {"--moe-stream", "--overlap"},
    {"--moe-stream", "--load-all"},
    {"--moe-stream", "--cache-mb", "1", "--force-cache"},
    {"--moe-stream", "--cache-mb", "64"},
    {"--moe-stream", "--cache-mb", "64", "--overlap", "--prefetch", "2"},
    {"--moe-stream", "--cache-mb", "2", "--predict-prefetch", "--dense-weights", "anon"},
    {"--moe-stream", "--cache-mb", "2", "--drop-cold-experts", "0", "--compute-trace", "/dev/null"},
};

void every_mode_dumps_the_same_bytes_and_changes_none() {
    for (const tiny::Arch arch : {tiny::Arch::qwen3moe, tiny::Arch::hy_v3, tiny::Arch::gpt_oss}) {
        const Bench bench(arch);
        const auto plain = bench.dump({});
        CHECK(plain.at("logits of the model") == bench.digest({}));
        for (const Args & flags : kStreaming) {
            auto streamed = bench.dump(flags);
            for (const auto & [name, bytes] : plain) {
                // Dropping may edit routes: the meta file says so.
                const bool same = name == "meta" && flags.size() > 4 && flags[3] == "--drop-cold-experts"
                                      ? json_value(streamed[name], "routing_edited") == "true"
                                      : streamed[name] == bytes;
                if (!same) {
                    std::fprintf(stderr, "  %s, %s: other %s\n", bench.model().arch_name(), flags.back().c_str(),
                                 name.c_str());
                }
                CHECK(same);
            }
        }
    }
}

void rows_are_those_of_the_routing() {
    const Bench bench(tiny::Arch::qwen3moe);
    const std::string trace = bench.file("route.csv");
    const auto files = bench.dump({"--moe-stream", "--cache-mb", "64", "--route-trace", trace});
    const auto ids = numbers<int32_t>(files.at("ids"));
    const auto weights = numbers<float>(files.at("weights"));
    const size_t rows = kPrompt + kDecode;
    CHECK(ids.size() == rows * 2 && weights.size() == rows * 2);
    CHECK(numbers<float>(files.at("input")).size() == rows * 256);
    CHECK(files.at("input") == files.at("router_input"));
    CHECK(numbers<float>(files.at("output")).size() == rows * 256);
    CHECK(numbers<float>(files.at("logits")).size() == rows * 8);

    size_t at = 0;
    for (const std::string & line : lines_of(file_contents(trace))) {
        unsigned turn = 0, phase = 0, step = 0, layer = 0, slot = 0, expert = 0;
        float weight = 0;
        const int read =
            std::sscanf(line.c_str(), "%u,%u,%u,%u,%u,%u,%f", &turn, &phase, &step, &layer, &slot, &expert, &weight);
        if (read != 7 || layer != 1) {
            continue;
        }
        CHECK(at == step * 2 + slot);
        CHECK(at < ids.size() && ids[at] == static_cast<int32_t>(expert) && std::abs(weights[at] - weight) < 1e-5F);
        ++at;
    }
    CHECK(at == ids.size());
    for (size_t row = 0; row < rows; ++row) {
        CHECK(std::abs(weights[2 * row] + weights[2 * row + 1] - 1) < 1e-6F);
    }
}

void the_last_layer_has_the_rows_that_are_computed() {
    const Bench bench(tiny::Arch::qwen3moe);
    for (const Args & flags : {Args{}, Args{"--moe-stream"}}) {
        const auto files = bench.dump(flags, 2);
        CHECK(numbers<int32_t>(files.at("ids")).size() == (1 + kDecode) * 2);
        const std::string & meta = files.at("meta");
        for (const char * call : {R"({"phase":"prefill","first_position":18,"tokens":3,"rows":1})",
                                  R"({"phase":"decode","first_position":19,"tokens":1,"rows":1})",
                                  R"({"phase":"prefill","first_position":16,"tokens":8,"rows":0})"}) {
            CHECK(meta.find(call) != std::string::npos);
        }
    }
}

void a_single_expert_is_dumped_too() {
    const Bench bench(tiny::Arch::qwen3moe, 1);
    const auto plain = bench.dump({});
    CHECK(numbers<float>(plain.at("output")).size() == (kPrompt + kDecode) * 256);
    for (const float weight : numbers<float>(plain.at("weights"))) {
        CHECK(weight == 1.0F);
    }
    CHECK(bench.dump({"--moe-stream", "--overlap"}) == plain);
    const Bench two(tiny::Arch::qwen3moe);
    CHECK(numbers<int32_t>(two.dump({"--expert-used", "1"}).at("ids")).size() == kPrompt + kDecode);
}

// What is dropped depends on what is resident, so on how passes and predictions see the graph: it must be seen whole.
void looking_does_not_change_what_is_dropped() {
    const Bench bench(tiny::Arch::qwen3moe);
    const Args flags = {"--moe-stream", "--cache-mb", "2", "--drop-cold-experts", "1"};
    const std::string without = bench.digest(flags);
    const std::string dropped = json_value(lines_of(file_contents(bench.file("t"))).back(), "dropped");
    CHECK(std::stoul(dropped) > 0);
    const auto files = bench.dump(flags);
    CHECK(files.at("logits of the model") == without);
    CHECK(json_value(files.at("meta"), "routing_edited") == "true");
    // The weights are those that multiply: of what was dropped, none.
    size_t zero = 0;
    for (const float weight : numbers<float>(files.at("weights"))) {
        zero += weight == 0.0F ? 1 : 0;
    }
    CHECK(zero > 0);
}

void the_telemetry_says_what_is_dumped() {
    const Bench bench(tiny::Arch::qwen3moe);
    bench.digest({});
    CHECK(json_value(lines_of(file_contents(bench.file("t"))).front(), "moe_dump") == "null");
    bench.digest({"--moe-dump", "il=0:" + bench.file("d")});
    CHECK(json_value(lines_of(file_contents(bench.file("t"))).front(), "moe_dump") == "il=0:" + bench.file("d"));
}

struct Refused {
    Args flags;
    int code;
    const char * words;
};

void what_cannot_be_dumped_is_refused() {
    const Bench bench(tiny::Arch::qwen3moe);
    const std::string model = file_contents(bench.path());
    CHECK(symlink(bench.path().c_str(), bench.file("x.ids.1").c_str()) == 0);
    CHECK(mkdir(bench.file("y.logits.1").c_str(), 0755) == 0);
    std::ofstream(bench.file("same")) << "x";
    CHECK(symlink(bench.file("same").c_str(), bench.file("z.input.1").c_str()) == 0);
    const std::vector<Refused> table = {
        {{"--moe-dump", "il=3:" + bench.file("d")}, 2,
         "--moe-dump: layer 3 has no routed experts; the layers that have are 0 to 2"},
        {{"--moe-dump", "il=1:" + bench.file("absent/d")}, 5, "cannot open dump's meta file"},
        {{"--moe-dump", "il=1:" + bench.file("y")}, 5, "cannot open dump's logits file"},
        {{"--moe-dump", "il=1:" + bench.file("x")}, 2, "the dump's file is the model"},
        {{"--moe-dump", "il=1:" + bench.file("z"), "--csv", bench.file("same")}, 2,
         "--csv and --moe-dump name the same file"},
    };
    for (const Refused & row : table) {
        for (const Args & mode : {Args{}, Args{"--moe-stream"}}) {
            Args flags = row.flags;
            flags.insert(flags.end(), mode.begin(), mode.end());
            const EngineResult result = bench.run(flags);
            if (result.code != row.code || result.error_line().find(row.words) == std::string::npos) {
                std::fprintf(stderr, "  expected %d '%s', got %d '%s'\n", row.code, row.words, result.code,
                             result.error_line().c_str());
            }
            CHECK(result.code == row.code && result.error_line().find(row.words) != std::string::npos);
        }
    }
    CHECK(file_contents(bench.path()) == model);
}

void a_full_disk_is_told() {
    const Bench bench(tiny::Arch::qwen3moe);
    if (access("/dev/full", W_OK) != 0) {
        return;
    }
    CHECK(symlink("/dev/full", bench.file("f.probs.1").c_str()) == 0);
    for (const Args & mode : {Args{}, Args{"--moe-stream"}}) {
        Args flags = {"--moe-dump", "il=1:" + bench.file("f")};
        flags.insert(flags.end(), mode.begin(), mode.end());
        const EngineResult result = bench.run(flags);
        CHECK(result.code == 5);
        CHECK(result.error_line().find("cannot write dump's probs file") != std::string::npos);
        CHECK(file_contents(bench.file("f.meta.1")).empty());  // this dump is not whole
    }
}

}  // namespace

int main() {
    check::run("every mode dumps the same bytes and changes none", every_mode_dumps_the_same_bytes_and_changes_none);
    check::run("rows are those of the routing", rows_are_those_of_the_routing);
    check::run("the last layer has the rows that are computed", the_last_layer_has_the_rows_that_are_computed);
    check::run("a single expert is dumped too", a_single_expert_is_dumped_too);
    check::run("looking does not change what is dropped", looking_does_not_change_what_is_dropped);
    check::run("the telemetry says what is dumped", the_telemetry_says_what_is_dumped);
    check::run("what cannot be dumped is refused", what_cannot_be_dumped_is_refused);
    check::run("a full disk is told", a_full_disk_is_told);
    return check::result();
}
