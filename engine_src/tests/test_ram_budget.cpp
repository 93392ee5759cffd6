// --ram-budget-mb: how a budget is divided, and that a run never takes more than it.
#include "ram_budget.h"

#include "check.h"
#include "engine_process.h"
#include "temp_dir.h"
#include "tiny_model.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace {

using Args = std::vector<std::string>;
using moe::RamBudget;

constexpr uint64_t mebibyte = uint64_t{1} << 20;

// Its shadow memory is private memory too, terabytes of it: no budget has room for that.
constexpr bool sanitized = *MOE_SANITIZE_NAME != '\0';

const TempDir & dir() {
    static const TempDir directory;
    return directory;
}

// 32 experts of 204 KiB and 32 of 384 KiB: budgets from one of the large to all of them lie 18 MiB apart.
const std::string & model_path() {
    static const std::string path = [] {
        tiny::Model model;
        model.n_layer = 4;
        model.n_expert = 16;
        model.n_expert_used = 3;
        model.expert_type = GGML_TYPE_Q8_0;
        model.n_large_layer = 2;
        return tiny::write(model, dir().file("tiny"));
    }();
    return path;
}

// A prompt of two batches, and more tokens than one layer has experts.
Args arguments(Args more) {
    Args args = {"-m", model_path(), "-p", "It was the best of times, it was the worst of times.", "-n", "12",
                 "-c", "128"};
    for (const auto & [flag, value] : std::map<std::string, std::string>{{"-b", "32"}, {"-t", "1"}}) {
        if (std::find(more.begin(), more.end(), flag) == more.end()) {
            args.insert(args.end(), {flag, value});
        }
    }
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

EngineResult run(Args more, uint64_t limit = 0) {
    more.push_back("--no-eog");
    return EngineProcess(arguments(std::move(more))).limit_data(limit).run(dir().file("run"));
}

std::string plan_of(Args more) {
    more.push_back("--plan-memory");
    const EngineResult planned = EngineProcess(arguments(std::move(more))).run(dir().file("plan"));
    CHECK(planned.code == 0 || planned.code == 4);
    return planned.out;
}

uint64_t number(const std::string & line, const std::string & key) { return std::stoull(json_value(line, key)); }

std::string mib(uint64_t bytes) { return std::to_string(bytes / mebibyte); }

void the_arena_is_what_the_reserve_leaves() {
    const RamBudget measured = moe::divide_budget(100, std::nullopt, 70);
    CHECK(measured.reserve_bytes == 70 && measured.reserve_measured_bytes == 70 && measured.arena_bytes() == 30);
    CHECK(!moe::budget_refusal(measured, 30));
    CHECK(moe::budget_refusal(measured, 31).has_value());
    const RamBudget asked = moe::divide_budget(100, 90, 70);
    CHECK(asked.reserve_bytes == 90 && asked.reserve_measured_bytes == 70 && asked.arena_bytes() == 10);
    CHECK(!moe::budget_refusal(asked, 10));
    CHECK(moe::divide_budget(100, 200, 70).arena_bytes() == 0);
    CHECK(moe::divide_budget(60, std::nullopt, 70).arena_bytes() == 0);
}

void a_refused_budget_names_both_numbers() {
    const std::string small = *moe::budget_refusal(moe::divide_budget(64 * mebibyte, std::nullopt, 63 * mebibyte), 2 * mebibyte);
    CHECK(small.find("expert arena too small: needs 68157440 bytes of anonymous memory, allowed 67108864 (--ram-budget-mb)") == 0);
    CHECK(small.find("give --ram-budget-mb 65 or more") != std::string::npos);
    const std::string reserve = *moe::budget_refusal(moe::divide_budget(64 * mebibyte, mebibyte, 63 * mebibyte + 1), 1);
    CHECK(reserve.find("needs 66060289 bytes of anonymous memory beside the expert arena, allowed 1048576 (--reserve-mb)") == 0);
    CHECK(reserve.find("give --reserve-mb 64 or more") != std::string::npos);
    CHECK(small.find('\n') == std::string::npos && reserve.find('\n') == std::string::npos);
}

void everything_is_accounted_for() {
    const std::string telemetry = dir().file("accounted.jsonl");
    const std::string plan = plan_of({"--ram-budget-mb", "4096"});
    const uint64_t budget = number(plan, "needed_bytes") / mebibyte - 10;  // some of the experts
    const Args args = {"--ram-budget-mb", std::to_string(budget), "--telemetry", telemetry};
    const EngineResult result = run(args);
    CHECK(result.code == 0);
    const std::string start = lines_of(file_contents(telemetry)).front();
    CHECK(json_value(start, "mode") == "stream");
    CHECK(json_value(start, "ram_budget_mb") == std::to_string(budget));
    CHECK(json_value(start, "reserve_mb") == "null" && json_value(start, "cache_mb") == "null");
    const std::string divided = start.substr(start.find("\"budget\":"));
    const std::string memory = start.substr(start.find("\"memory\":"));
    const uint64_t reserve = number(divided, "reserve_bytes");
    CHECK(number(divided, "ram_budget_bytes") == budget * mebibyte);
    CHECK(number(divided, "reserve_measured_bytes") == reserve);
    CHECK(number(memory, "allowed_bytes") == budget * mebibyte);
    const uint64_t arena = number(memory, "arena_bytes");
    CHECK(number(memory, "needed_bytes") == arena + reserve);
    uint64_t sum = 0;
    for (const char * part : {"arena", "dense", "kv", "compute", "stack", "io", "base"}) {
        sum += number(memory, std::string(part) + "_bytes");
    }
    CHECK(sum == number(memory, "needed_bytes"));
    // What is left does not hold another expert.
    const uint64_t slot = number(start.substr(start.find("\"arena\":")), "slot_bytes");
    CHECK(sum <= budget * mebibyte && sum + slot > budget * mebibyte);

    const std::string second = dir().file("reserved.jsonl");
    const std::string asked = mib(reserve + 3 * mebibyte);
    CHECK(run({"--ram-budget-mb", std::to_string(budget), "--reserve-mb", asked, "--telemetry", second}).code == 0);
    const std::string more = lines_of(file_contents(second)).front();
    const std::string more_divided = more.substr(more.find("\"budget\":"));
    CHECK(number(more_divided, "reserve_bytes") == std::stoull(asked) * mebibyte);
    CHECK(number(more_divided, "reserve_measured_bytes") <= reserve + mebibyte);
    CHECK(number(more.substr(more.find("\"memory\":")), "arena_bytes") < arena);
}

void what_does_not_fit_is_refused_with_both_numbers() {
    const std::string plan = plan_of({"--ram-budget-mb", "1"});
    const uint64_t needed = number(plan, "needed_bytes");
    CHECK(json_value(plan, "allowed_bytes") == std::to_string(mebibyte));
    const std::vector<uint64_t> budgets = sanitized ? std::vector<uint64_t>{1, 64}
                                                    : std::vector<uint64_t>{1, needed / mebibyte / 2, needed / mebibyte - 1};
    for (const uint64_t budget : budgets) {
        const EngineResult refused = run({"--ram-budget-mb", std::to_string(budget)});
        CHECK(refused.code == 4);
        CHECK(refused.error_line().find("expert arena too small: needs ") == 0);
        CHECK(refused.error_line().find(", allowed " + std::to_string(budget * mebibyte) + " (--ram-budget-mb)") !=
              std::string::npos);
    }
    const EngineResult reserve = run({"--ram-budget-mb", "4096", "--reserve-mb", "1"});
    CHECK(reserve.code == 4);
    CHECK(reserve.error_line().find(", allowed 1048576 (--reserve-mb)") != std::string::npos);
    if (sanitized) {
        return;
    }
    const EngineResult reserved = run({"--ram-budget-mb", "64", "--reserve-mb", "64"});
    CHECK(reserved.code == 4);
    CHECK(reserved.error_line().find("expert arena too small") == 0);
    // A limit below the budget is what counts, and is named.
    const EngineResult limited = run({"--ram-budget-mb", "4096"}, needed + mebibyte);
    CHECK(limited.code == 4);
    CHECK(limited.error_line().find("(RLIMIT_DATA)") != std::string::npos);
}

// The least budget by the words of the refusal; a quarter MiB more, because two dry runs may differ by a few pages.
uint64_t least_budget(Args more) {
    more.insert(more.end(), {"--ram-budget-mb", "1"});
    const EngineResult refused = run(std::move(more));
    CHECK(refused.code == 4);
    const std::string line = refused.error_line();
    const std::string start = "expert arena too small: needs ";
    CHECK(line.find(start) == 0);
    return (std::stoull(line.substr(start.size())) + mebibyte / 4) / mebibyte + 1;
}

struct Mechanism {
    Args both;  // what a plain run does too
    Args paged;
};

// Under a limit of just the budget: nothing that was not planned for can be allocated.
void random_budgets_hold_and_change_no_bit() {
    const std::string given = dir().file("given.txt");
    std::ofstream(given) << "the quick brown fox jumps over the lazy dog";
    const std::vector<Mechanism> mechanisms = {
        {{}, {}},
        {{"-b", "8"}, {"--overlap"}},
        {{}, {"--prefetch", "2"}},
        {{}, {"--predict-prefetch", "--overlap"}},
        {{"-t", "2"}, {"--dense-weights", "anon"}},
        {{"--given-text", given}, {"--dense-weights", "warm"}},
        {{"--expert-used", "1"},
         {"--route-trace", dir().file("r.csv"), "--io-trace", dir().file("i.csv"), "--compute-trace", dir().file("c.csv")}}};
    const uint64_t experts = 18;  // MiB
    std::mt19937_64 random(20261130);
    for (const Mechanism & mechanism : mechanisms) {
        const std::string plain = run(mechanism.both).out;
        CHECK(!plain.empty());
        Args args = mechanism.both;
        args.insert(args.end(), mechanism.paged.begin(), mechanism.paged.end());
        const uint64_t least = least_budget(args);
        const std::string telemetry = dir().file("random.jsonl");
        args.insert(args.end(), {"--telemetry", telemetry, "--csv", dir().file("random.csv"), "--ram-budget-mb", ""});
        for (const uint64_t budget : {least, least + random() % experts, least + random() % experts, least + experts + 2}) {
            args.back() = std::to_string(budget);
            const EngineResult result = run(args, budget * mebibyte);
            if (result.code != 0 || result.out != plain) {
                std::fprintf(stderr, "  %s with %s: %d %s\n", args.back().c_str(),
                             mechanism.paged.empty() ? "nothing else" : mechanism.paged.front().c_str(), result.code,
                             result.err.c_str());
            }
            CHECK(result.code == 0);
            CHECK(result.out == plain);
            const std::vector<std::string> lines = lines_of(file_contents(telemetry));
            CHECK(!lines.empty() && json_value(lines.back(), "type") == "summary");
            CHECK(number(lines.back(), "anon_peak_bytes") <= budget * mebibyte);
        }
        args.back() = std::to_string(least - 2);
        CHECK(run(args, (least - 2) * mebibyte).code == 4);
    }
}

}  // namespace

int main() {
    check::run("the arena is what the reserve leaves", the_arena_is_what_the_reserve_leaves);
    check::run("a refused budget names both numbers", a_refused_budget_names_both_numbers);
    check::run("what does not fit is refused with both numbers", what_does_not_fit_is_refused_with_both_numbers);
    if (!sanitized) {
        check::run("everything is accounted for", everything_is_accounted_for);
        check::run("random budgets hold and change no bit", random_budgets_hold_and_change_no_bit);
    }
    return check::result();
}
