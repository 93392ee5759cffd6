// The engine as its users see it: the real program on a tiny model, its text, its files and its exit codes.
#include "decode.h"
#include "error.h"
#include "sha256.h"

#include "check.h"
#include "engine_process.h"
#include "temp_dir.h"
#include "tiny_model.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using Args = std::vector<std::string>;

const TempDir & dir() {
    static const TempDir directory;
    return directory;
}

// More experts than the smallest arena holds, so that small caches evict.
const std::string & model_path() {
    static const std::string path = [] {
        tiny::Model model;
        model.n_layer = 3;
        model.n_expert = 16;
        model.n_expert_used = 3;
        model.expert_type = GGML_TYPE_Q4_K;
        model.dense_type = GGML_TYPE_Q8_0;
        return tiny::write(model, dir().file("tiny"));
    }();
    return path;
}

constexpr const char * prompt = "It was the best of times, it was the worst of times.";

EngineProcess engine(Args more) {
    Args args = {"-m", model_path(), "-p", prompt, "-n", "12", "-c", "128", "-t", "1", "--no-eog"};
    args.insert(args.end(), more.begin(), more.end());
    return EngineProcess(args);
}

EngineResult run(Args more) { return engine(std::move(more)).run(dir().file("run")); }

std::string unhex(const std::string & hex) {
    std::string bytes;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return bytes;
}

void greedy_takes_the_lowest_of_equals() {
    const std::vector<float> logits = {-1.0F, 3.0F, 3.0F, 2.0F};
    CHECK(moe::greedy_token(logits.data(), 4) == 1);
    const std::vector<float> masked = {-INFINITY, -INFINITY, -5.0F};
    CHECK(moe::greedy_token(masked.data(), 3) == 2);
}

void a_logit_that_is_no_number_is_an_error() {
    for (size_t at = 0; at < 3; ++at) {
        std::vector<float> logits = {1.0F, 2.0F, 3.0F};
        logits[at] = NAN;
        bool refused = false;
        try {
            moe::greedy_token(logits.data(), 3);
        } catch (const moe::Error & error) {
            refused = error.code() == moe::ExitCode::other;
        }
        CHECK(refused);
    }
}

void a_plain_run_tells_everything() {
    const std::string csv = dir().file("plain.csv");
    const std::string telemetry = dir().file("plain.jsonl");
    const EngineResult result = run({"--csv", csv, "--telemetry", telemetry, "--logits-digest", "--progress"});
    CHECK(result.code == 0);

    const std::vector<std::string> events = lines_of(file_contents(telemetry));
    CHECK(events.size() == 1 + 1 + 12 + 1);
    CHECK(json_value(events.front(), "type") == "start");
    CHECK(json_value(events.front(), "mode") == "plain");
    CHECK(json_value(events.front(), "cache_mb") == "null");
    CHECK(json_value(events.front(), "n_expert") == "16");
    CHECK(json_value(events.front(), "n_moe_layer") == "3");
    CHECK(events.front().find("\"arena\":null") != std::string::npos);
    CHECK(json_value(events[1], "type") == "prefill");
    CHECK(json_value(events[1], "n_prompt") == std::to_string(std::string(prompt).size()));

    std::string text;
    std::string ids;
    for (int i = 0; i < 12; ++i) {
        const std::string & event = events[static_cast<size_t>(2 + i)];
        CHECK(json_value(event, "type") == "token");
        CHECK(json_value(event, "token") == std::to_string(i));
        CHECK(json_value(event, "hits") == "null");
        text += unhex(json_value(event, "text_hex"));
        ids += json_value(event, "id") + "\n";
    }
    CHECK(result.out == text);

    moe::Sha256 sha;
    sha.update(ids.data(), ids.size());
    const std::string & summary = events.back();
    CHECK(json_value(summary, "type") == "summary");
    CHECK(json_value(summary, "tokens") == "12");
    CHECK(json_value(summary, "stopped_by") == "length");
    CHECK(json_value(summary, "ids_sha256") == sha.hex());
    CHECK(json_value(summary, "logits_sha256").size() == 64);
    CHECK(std::stod(json_value(summary, "tok_s")) > 0);

    const std::vector<std::string> rows = lines_of(file_contents(csv));
    CHECK(rows.size() == 13);
    CHECK(rows[1].rfind("0,", 0) == 0 && rows[12].rfind("11,", 0) == 0);
    const std::vector<std::string> log = lines_of(result.err);
    CHECK(std::count_if(log.begin(), log.end(), [](const std::string & l) { return l.rfind("progress ", 0) == 0; }) == 12);
}

std::string digest(Args more, const std::string & expected_mode, std::string * summary_out = nullptr) {
    const std::string telemetry = dir().file("digest.jsonl");
    more.insert(more.end(), {"--telemetry", telemetry, "--logits-digest"});
    const EngineResult result = run(more);
    CHECK(result.code == 0);
    const std::vector<std::string> events = lines_of(file_contents(telemetry));
    if (result.code != 0 || events.empty()) {
        return "(failed: " + result.err + ")";
    }
    CHECK(json_value(events.front(), "mode") == expected_mode);
    if (summary_out) {
        *summary_out = events.back();
    }
    return json_value(events.back(), "logits_sha256");
}

void paging_does_not_change_a_single_logit() {
    for (const char * batch : {"8", "64"}) {
        EngineResult base = run({"-b", batch});
        const std::string plain = digest({"-b", batch}, "plain");
        for (const char * cache : {"0", "1", "2", "64"}) {
            for (const char * dense : {"mmap", "anon"}) {
                std::string summary;
                Args paging = {"-b", batch, "--moe-stream", "--cache-mb", cache, "--dense-weights", dense};
                if (*cache != '0') {
                    paging.push_back("--force-cache");
                }
                const std::string paged = digest(paging, "stream", &summary);
                CHECK(paged == plain);
                const std::string total = summary.substr(summary.find("\"total\":"));
                const auto count = [&](const char * key) { return std::stoull(json_value(total, key)); };
                CHECK(count("requests") == count("hits") + count("misses"));
                CHECK(count("read_bytes") > 0);
                if (std::string(cache) == "1") {
                    CHECK(count("evictions") > 0);
                }
            }
        }
        CHECK(run({"-b", batch, "--moe-stream", "--no-odirect"}).out == base.out);
    }
    const Args two_threads = {"-m", model_path(), "-p", prompt, "-n", "6", "-c", "128", "--no-eog", "-t", "2"};
    const auto text = [&](Args more) {
        more.insert(more.begin(), two_threads.begin(), two_threads.end());
        const EngineResult result = EngineProcess(more).run(dir().file("threads"));
        CHECK(result.code == 0);
        return result.out;
    };
    CHECK(text({}) == text({"--moe-stream", "--cache-mb", "1", "--force-cache"}));
}

void fewer_experts_change_the_result_alike_in_both_modes() {
    const std::string own = digest({}, "plain");
    const std::string one = digest({"--expert-used", "1"}, "plain");
    CHECK(own != one);
    CHECK(digest({"--n-expert-used", "3"}, "plain") == own);
    CHECK(digest({"--expert-used", "1", "--moe-stream", "--cache-mb", "1"}, "stream") == one);
    CHECK(run({"--expert-used", "16"}).code == 0);
    CHECK(run({"--expert-used", "17"}).code == 2);
}

void repacking_is_possible_in_plain_mode() { CHECK(run({"--repack"}).code == 0); }

struct Failure {
    const char * name;
    Args args;
    int code;
    const char * words;
};

void expect_failure(const Failure & failure, const EngineResult & result) {
    const std::string line = result.error_line();
    const bool ok = result.code == failure.code && line.find(failure.words) != std::string::npos;
    if (!ok) {
        std::fprintf(stderr, "  %s: code %d (expected %d), stderr: %s\n", failure.name, result.code, failure.code,
                     result.err.c_str());
    }
    CHECK(ok);
}

// A model file without routed experts: what remains of the tiny one when the expert tensors are left out.
std::string dense_model() {
    using namespace tiny;
    const Model model;
    detail::Tensors tensors(size_t{64} << 20, 1);
    detail::add_tensors(tensors, model);
    const detail::GgufPtr gguf(gguf_init_empty());
    detail::set_metadata(gguf.get(), model);
    for (const ggml_tensor * tensor : tensors.all()) {
        if (std::string(tensor->name).find("_exps") == std::string::npos) {
            gguf_add_tensor(gguf.get(), tensor);
        }
    }
    const std::string path = dir().file("dense.gguf");
    gguf_write_to_file(gguf.get(), path.c_str(), false);
    return path;
}

void unusable_models_are_refused_in_one_line() {
    const std::string garbage = dir().file("garbage.gguf");
    std::ofstream(garbage) << "this is not a model at all, only some text that is long enough to be read";
    const std::string empty = dir().file("empty.gguf");
    std::ofstream{empty};
    const std::string cut = dir().file("cut.gguf");
    std::filesystem::copy_file(model_path(), cut);
    std::filesystem::resize_file(cut, std::filesystem::file_size(cut) - 1000);
    const std::string beheaded = dir().file("beheaded.gguf");
    std::filesystem::copy_file(model_path(), beheaded);
    std::filesystem::resize_file(beheaded, 300);
    // Right in every tensor, wrong in what only llama.cpp knows.
    const std::string strange = dir().file("strange.gguf");
    std::string bytes = file_contents(model_path());
    for (size_t at = bytes.find("qwen3moe"); at < 100000 && at != std::string::npos; at = bytes.find("qwen3moe", at)) {
        bytes.replace(at, 8, "qwen9moe");
    }
    std::ofstream(strange, std::ios::binary) << bytes;

    const std::vector<Failure> table = {
        {"absent", {dir().file("nowhere.gguf")}, 3, "No such file"},
        {"directory", {dir().file("")}, 3, "not a regular file"},
        {"garbage", {garbage}, 3, "GGUF"},
        {"empty", {empty}, 3, "GGUF"},
        {"cut off", {cut}, 3, "truncated"},
        {"beheaded", {beheaded}, 3, "GGUF"},
        {"no experts", {dense_model()}, 3, "MoE"},
        {"unknown architecture", {strange}, 3, "cannot load model"},
    };
    for (const Failure & failure : table) {
        for (const bool stream : {false, true}) {
            Args args = {"-m", failure.args[0], "-p", "x", "-n", "1", "-t", "1"};
            if (stream) {
                args.push_back("--moe-stream");
            }
            expect_failure(failure, EngineProcess(args).run(dir().file("refused")));
        }
        expect_failure(failure, EngineProcess({"-m", failure.args[0], "--plan-memory"}).run(dir().file("refused")));
    }
}

// The model decodes what it is given, and says how likely it found that.
void a_given_text_is_decoded_instead_of_choices() {
    const std::string text = dir().file("given.txt");
    std::ofstream{text} << "the quick brown fox jumps over the lazy dog";
    std::optional<std::string> plain_nll;
    for (const Args & mode : {Args{}, Args{"--moe-stream", "--cache-mb", "1", "--force-cache"}}) {
        Args args = mode;
        const std::string telemetry = dir().file("given.jsonl");
        args.insert(args.end(), {"--given-text", text, "--telemetry", telemetry});
        const EngineResult result = run(args);
        CHECK(result.code == 0);
        CHECK(result.out == "the quick br");  // of this vocabulary a byte is a token
        const std::string summary = lines_of(file_contents(telemetry)).back();
        const std::string given = summary.substr(summary.find("\"given\":"));
        CHECK(json_value(given, "tokens") == "12");
        CHECK(std::stod(json_value(given, "nll")) > 0);
        CHECK(json_value(given, "nll") == plain_nll.value_or(json_value(given, "nll")));
        plain_nll = json_value(given, "nll");
    }
}

void failures_have_their_codes() {
    const std::string empty = dir().file("empty.txt");
    std::ofstream{empty};
    const std::string short_text = dir().file("short.txt");
    std::ofstream{short_text} << "a b";
    const std::string link = dir().file("link.txt");
    CHECK(symlink(short_text.c_str(), link.c_str()) == 0);
    const std::string dangling = dir().file("dangling.csv");
    CHECK(symlink("not_there.csv", dangling.c_str()) == 0);
    const std::string one = dir().file("one.csv");
    std::ofstream{one};
    const std::string its_other_name = dir().file("other.csv");
    CHECK(::link(one.c_str(), its_other_name.c_str()) == 0);
    const Args model = {"-m", model_path()};
    const auto with_model = [&](Args more) {
        more.insert(more.begin(), model.begin(), model.end());
        return more;
    };
    const std::vector<Failure> table = {
        {"nothing", {}, 2, "--model FILE is required"},
        {"unknown flag", with_model({"-p", "x", "--fast"}), 2, "unknown flag"},
        {"no prompt file", with_model({"-f", dir().file("none.txt")}), 5, "cannot read prompt file"},
        {"empty prompt file", with_model({"-f", empty}), 2, "is empty"},
        {"prompt too long", with_model({"-p", prompt, "-n", "12", "-c", "60"}), 2, "do not fit into --ctx-size 60"},
        {"given text too short", with_model({"-p", prompt, "-n", "12", "--given-text", short_text}), 2,
         "has 3 tokens, --predict asks for 12"},
        {"no given text", with_model({"-p", prompt, "--given-text", dir().file("none.txt")}), 5, "cannot read given text"},
        {"planned prompt too long", with_model({"-p", prompt, "-n", "12", "-c", "60", "--plan-memory"}), 2, "do not fit"},
        {"csv nowhere", with_model({"-p", "x", "-n", "1", "--csv", dir().file("no/dir.csv")}), 5, "cannot open CSV"},
        {"csv is the model", with_model({"-p", "x", "-n", "1", "--csv", model_path()}), 2, "is the model"},
        {"outputs meet through a link to nowhere",
         with_model({"-p", "x", "-n", "1", "--csv", dangling, "--telemetry", dir().file("not_there.csv")}), 2,
         "--csv and --telemetry name the same file"},
        {"outputs are one file by two names",
         with_model({"-p", "x", "-n", "1", "--csv", one, "--telemetry", its_other_name}), 2,
         "--csv and --telemetry name the same file"},
        {"csv is the given text", with_model({"-p", "x", "-n", "1", "--given-text", short_text, "--csv", link}), 2,
         "is the given text"},
        {"statistics are the model", with_model({"-p", "x", "-n", "1", "--moe-stream", "--stats", model_path()}), 2,
         "the statistics file is the model"},
        {"statistics of a session are the model", with_model({"--session", "--moe-stream", "--stats", model_path()}), 2,
         "the statistics file is the model"},
        {"statistics disk full", with_model({"-p", "x", "-n", "1", "--moe-stream", "--stats", "/dev/full"}), 5,
         "cannot write statistics file '/dev/full'"},
        {"telemetry disk full", with_model({"-p", "x", "-n", "1", "--telemetry", "/dev/full"}), 5, "No space left"},
        {"csv disk full", with_model({"-p", "x", "-n", "1", "--csv", "/dev/full"}), 5, "No space left"},
    };
    for (const Failure & failure : table) {
        expect_failure(failure, EngineProcess(failure.args).run(dir().file("failed")));
    }
    const Failure full = {"stdout full", {}, 5, "cannot write to standard output"};
    expect_failure(full, engine({}).stdout_to("/dev/full").run(dir().file("full")));
    const std::string telemetry = dir().file("closed.jsonl");
    const Failure closed = {"stdout closed", {}, 5, "cannot write to standard output"};
    expect_failure(closed, engine({"--telemetry", telemetry}).without_stdout().run(dir().file("closed")));
    for (const std::string & line : lines_of(file_contents(telemetry))) {
        CHECK(line.front() == '{' && line.back() == '}');  // the text did not end up here
    }
    CHECK(file_contents(model_path()).substr(0, 4) == "GGUF");  // still the model
}

void version_and_help_need_nothing_else() {
    const EngineResult version = EngineProcess({"--version"}).run(dir().file("version"));
    CHECK(version.code == 0);
    CHECK(version.out.rfind("moe-engine ", 0) == 0 && version.out.find(" llama.cpp ") != std::string::npos);
    const EngineResult help = EngineProcess({"--help"}).run(dir().file("help"));
    CHECK(help.code == 0 && help.out.find("--moe-stream") != std::string::npos);
}

// The plan is a promise: what it accepts runs, what it refuses says both numbers. (A sanitizer's shadow memory
// counts against RLIMIT_DATA and has nothing to do with the engine.)
void a_plan_that_fits_runs_and_one_that_does_not_is_refused() {
    const std::vector<Args> settings = {{}, {"--moe-stream", "--cache-mb", "1", "--force-cache"},
                                        {"--moe-stream", "--cache-mb", "8", "--dense-weights", "anon"},
                                        {"--moe-stream", "--cache-mb", "8", "--overlap", "--predict-prefetch"}};
    for (const Args & setting : settings) {
        Args planning = {"-m", model_path(), "-p", prompt, "-n", "12", "-c", "128", "-t", "1", "--plan-memory"};
        planning.insert(planning.end(), setting.begin(), setting.end());
        const EngineResult unlimited = EngineProcess(planning).run(dir().file("plan"));
        CHECK(unlimited.code == 0);
        CHECK(json_value(unlimited.out, "type") == "memory_plan");
        CHECK(json_value(unlimited.out, "allowed_bytes") == "null");
        if (*MOE_SANITIZE_NAME) {
            continue;
        }
        // The child's heap and with it the plan may differ by a few pages from one process to the next.
        const uint64_t needed = std::stoull(json_value(unlimited.out, "needed_bytes")) + (1 << 20);
        CHECK(engine(setting).limit_data(needed).run(dir().file("fits")).code == 0);

        const uint64_t small = needed - (4 << 20);
        const EngineResult planned = EngineProcess(planning).limit_data(small).run(dir().file("plan"));
        CHECK(planned.code == 4);
        CHECK(json_value(planned.out, "allowed_bytes") == std::to_string(small));
        for (const uint64_t limit : {small, small / 2, uint64_t{4} << 20, uint64_t{2} << 20}) {
            const EngineResult refused = engine(setting).limit_data(limit).run(dir().file("refused"));
            CHECK(refused.code == 4);
            const std::string line = refused.error_line();
            CHECK(line.rfind("needs ", 0) == 0);
            CHECK(line.find(" of anonymous memory, allowed " + std::to_string(limit) + " (RLIMIT_DATA)") !=
                  std::string::npos);
        }
    }
}

}  // namespace

int main() {
    check::run("greedy takes the lowest of equals", greedy_takes_the_lowest_of_equals);
    check::run("a logit that is no number is an error", a_logit_that_is_no_number_is_an_error);
    check::run("a plain run tells everything", a_plain_run_tells_everything);
    check::run("paging does not change a single logit", paging_does_not_change_a_single_logit);
    check::run("fewer experts change the result alike in both modes", fewer_experts_change_the_result_alike_in_both_modes);
    check::run("repacking is possible in plain mode", repacking_is_possible_in_plain_mode);
    check::run("unusable models are refused in one line", unusable_models_are_refused_in_one_line);
    check::run("a given text is decoded instead of choices", a_given_text_is_decoded_instead_of_choices);
    check::run("failures have their codes", failures_have_their_codes);
    check::run("version and help need nothing else", version_and_help_need_nothing_else);
    check::run("a plan that fits runs, one that does not is refused", a_plan_that_fits_runs_and_one_that_does_not_is_refused);
    return check::result();
}
