// EPQ_* variables: what they mean, that flags win, and that every refusal names the variable.
#include "environment.h"
#include "error.h"
#include "options.h"

#include "check.h"
#include "engine_process.h"
#include "temp_dir.h"
#include "tiny_model.h"

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace {

using moe::Options;
using moe::Variables;
using Args = std::vector<std::string>;

const Args basic = {"-m", "model.gguf", "-p", "hello"};

Options parse(const Variables & variables, Args more = {}) {
    more.insert(more.begin(), basic.begin(), basic.end());
    return moe::parse_options(more, 4, variables);
}

struct Accepted {
    Variables variables;
    Args flags;
    std::function<bool(const Options &)> meaning;
};

void accepted() {
    const std::vector<Accepted> table = {
        {{}, {}, [](const Options & o) { return !o.moe_stream && o.from_variables.empty(); }},
        {{{"EPQ_PAGER", "1"}}, {}, [](const Options & o) { return o.moe_stream && !o.has_cache(); }},
        {{{"EPQ_PAGER", "1"}}, {"--moe-stream"}, [](const Options & o) { return o.moe_stream; }},
        {{{"EPQ_PAGER", "0"}}, {}, [](const Options & o) { return !o.moe_stream; }},
        {{{"EPQ_PAGER", "0"}}, {"--repack"}, [](const Options & o) { return o.repack; }},
        {{{"EPQ_RAM_BUDGET_MB", "64"}}, {}, [](const Options & o) { return o.ram_budget_mb == 64 && o.moe_stream; }},
        {{{"EPQ_RAM_BUDGET_MB", "64"}, {"EPQ_RESERVE_MB", "32"}, {"EPQ_PREFETCH", "2"}},
         {},
         [](const Options & o) { return o.ram_budget_mb == 64 && o.reserve_mb == 32 && o.prefetch == 2; }},
        {{{"EPQ_PREFETCH", "0"}}, {"--ram-budget-mb", "64"}, [](const Options & o) { return o.prefetch == 0; }},
        {{{"EPQ_EVICT", "ls"}, {"EPQ_STATS_FILE", "s"}},
         {"--ram-budget-mb", "64"},
         [](const Options & o) { return o.evict == "ls" && o.stats == "s"; }},
        {{{"EPQ_EVICT", "ls"}}, {"--ram-budget-mb", "64", "--evict", "lfu"}, [](const Options & o) { return o.evict == "lfu"; }},
        {{{"EPQ_PAGER", "0"}, {"EPQ_EVICT", "none"}, {"EPQ_STATS_FILE", "s"}},
         {},
         [](const Options & o) { return o.evict == "lru" && !o.stats; }},
        {{{"EPQ_EXPERT_USED", "3"}}, {}, [](const Options & o) { return o.expert_used == 3 && !o.moe_stream; }},
        {{{"EPQ_BENCH_NO_EOG", "1"}}, {}, [](const Options & o) { return !o.stop_at_eog; }},
        {{{"EPQ_BENCH_NO_EOG", "0"}}, {}, [](const Options & o) { return o.stop_at_eog; }},
        {{{"EPQ_MOE_DUMP", "il=2:d"}, {"EPQ_PAGER", "0"}},
         {},
         [](const Options & o) { return o.moe_dump && o.moe_dump->layer == 2 && o.moe_dump->prefix == "d"; }},
        {{{"EPQ_MOE_DUMP", "il=2:d"}}, {}, [](const Options & o) { return o.moe_dump && !o.moe_stream; }},
        {{{"EPQ_REQUIRE_PAGER", "0"}}, {}, [](const Options & o) { return !o.moe_stream; }},
        {{{"EPQ_REQUIRE_PAGER", "1"}}, {"--moe-stream"}, [](const Options & o) { return o.moe_stream; }},
        {{{"EPQ_REQUIRE_PAGER", "1"}, {"EPQ_PAGER", "1"}}, {}, [](const Options & o) { return o.moe_stream; }},
        {{{"EPQ_REQUIRE_PAGER", "1"}, {"EPQ_RAM_BUDGET_MB", "9"}}, {}, [](const Options & o) { return o.moe_stream; }},
        // flags win
        {{{"EPQ_RAM_BUDGET_MB", "64"}}, {"--ram-budget-mb", "9"}, [](const Options & o) { return o.ram_budget_mb == 9; }},
        {{{"EPQ_RAM_BUDGET_MB", "x"}}, {"--ram-budget-mb", "9"}, [](const Options & o) { return o.ram_budget_mb == 9; }},
        {{{"EPQ_EXPERT_USED", "3"}}, {"--n-expert-used", "2"}, [](const Options & o) { return o.expert_used == 2; }},
        // what is about the pager does not apply without one
        {{{"EPQ_PAGER", "0"}, {"EPQ_RAM_BUDGET_MB", "64"}, {"EPQ_RESERVE_MB", "x"}, {"EPQ_PREFETCH", "2"}},
         {},
         [](const Options & o) { return !o.moe_stream && !o.ram_budget_mb && o.prefetch == 0; }},
        {{{"EPQ_PAGER", "0"}, {"EPQ_EXPERT_USED", "3"}}, {}, [](const Options & o) { return o.expert_used == 3; }},
    };
    for (const Accepted & row : table) {
        bool ok = false;
        try {
            ok = row.meaning(parse(row.variables, row.flags));
        } catch (const moe::Error & error) {
            std::fprintf(stderr, "  refused: %s\n", error.what());
        }
        if (!ok) {
            std::fprintf(stderr, "  for %s\n", row.variables.empty() ? "none" : row.variables.rbegin()->first.c_str());
        }
        CHECK(ok);
    }
}

struct Refused {
    Variables variables;
    Args flags;
    const char * words;
};

void refused() {
    const std::vector<Refused> table = {
        {{{"EPQ_BIG_THRESHOLD_BYTES", "1"}}, {}, "EPQ_BIG_THRESHOLD_BYTES: this variable is not supported"},
        {{{"EPQ_", "1"}}, {}, "EPQ_: this variable is not supported"},
        {{{"EPQ_PAGER", "2"}}, {}, "EPQ_PAGER: '2' is neither 0 nor 1"},
        {{{"EPQ_PAGER", ""}}, {}, "EPQ_PAGER: '' is neither 0 nor 1"},
        {{{"EPQ_REQUIRE_PAGER", "yes"}}, {}, "EPQ_REQUIRE_PAGER: 'yes' is neither 0 nor 1"},
        {{{"EPQ_BENCH_NO_EOG", "on"}}, {}, "EPQ_BENCH_NO_EOG: 'on' is neither 0 nor 1"},
        {{{"EPQ_RAM_BUDGET_MB", "64 MB"}}, {}, "--ram-budget-mb (from EPQ_RAM_BUDGET_MB): '64 MB' is not a whole number"},
        {{{"EPQ_RAM_BUDGET_MB", ""}}, {}, "(from EPQ_RAM_BUDGET_MB): '' is not a whole number"},
        {{{"EPQ_EXPERT_USED", "0"}}, {}, "--expert-used (from EPQ_EXPERT_USED): '0' is out of range"},
        {{{"EPQ_PREFETCH", "9"}}, {"--ram-budget-mb", "64"}, "--prefetch (from EPQ_PREFETCH): '9' is out of range"},
        {{{"EPQ_MOE_DUMP", "2"}}, {}, "--moe-dump (from EPQ_MOE_DUMP)"},
        // combinations, with flags and among variables
        {{{"EPQ_PREFETCH", "2"}}, {}, "--prefetch (from EPQ_PREFETCH) needs --moe-stream"},
        {{{"EPQ_PREFETCH", "2"}, {"EPQ_PAGER", "1"}}, {}, "--prefetch (from EPQ_PREFETCH) needs a cache"},
        {{{"EPQ_PREFETCH", "2"}},
         {"--ram-budget-mb", "64", "--predict-prefetch"},
         "--prefetch (from EPQ_PREFETCH) cannot be combined with --predict-prefetch"},
        {{{"EPQ_RESERVE_MB", "2"}}, {}, "--reserve-mb (from EPQ_RESERVE_MB) needs --ram-budget-mb N"},
        {{{"EPQ_RAM_BUDGET_MB", "64"}},
         {"--cache-mb", "64"},
         "--cache-mb cannot be combined with --ram-budget-mb (from EPQ_RAM_BUDGET_MB)"},
        {{{"EPQ_PAGER", "1"}}, {"--repack"}, "--repack cannot be combined with --moe-stream (from EPQ_PAGER)"},
        {{{"EPQ_BENCH_NO_EOG", "1"}}, {"--plan-memory"}, "--no-eog (from EPQ_BENCH_NO_EOG) cannot be combined with"},
        {{{"EPQ_PAGER", "0"}}, {"--moe-stream"}, "--moe-stream cannot be combined with EPQ_PAGER=0"},
        {{{"EPQ_PAGER", "0"}}, {"--ram-budget-mb", "64"}, "--ram-budget-mb cannot be combined with EPQ_PAGER=0"},
        {{{"EPQ_PAGER", "0"}}, {"--overlap"}, "--overlap cannot be combined with EPQ_PAGER=0"},
        {{{"EPQ_REQUIRE_PAGER", "1"}}, {}, "EPQ_REQUIRE_PAGER=1, but this run would be plain: give --moe-stream"},
        {{{"EPQ_REQUIRE_PAGER", "1"}, {"EPQ_PAGER", "0"}}, {}, "and unset EPQ_PAGER"},
    };
    for (const Refused & row : table) {
        std::string message = "(accepted)";
        bool usage = false;
        try {
            parse(row.variables, row.flags);
        } catch (const moe::Error & error) {
            message = error.what();
            usage = error.code() == moe::ExitCode::usage;
        }
        const bool ok = usage && message.find(row.words) != std::string::npos && message.find('\n') == std::string::npos;
        if (!ok) {
            std::fprintf(stderr, "  expected '%s', got '%s'\n", row.words, message.c_str());
        }
        CHECK(ok);
    }
}

void help_and_version_look_at_no_variable() {
    const Variables wrong = {{"EPQ_REQUIRE_PAGER", "1"}, {"EPQ_PREFETCH", "x"}, {"EPQ_NONE", ""}};
    CHECK(moe::parse_options({"--version"}, 4, wrong).version);
    CHECK(moe::parse_options({"--help"}, 4, wrong).help);
}

void only_variables_of_the_prefix_are_taken() {
    const char * const environment[] = {"PATH=/bin", "EPQ_PAGER=1", "XEPQ_PAGER=0", "EPQ_STATS=a=b", "EPQ_BROKEN", nullptr};
    const Variables expected = {{"EPQ_PAGER", "1"}, {"EPQ_STATS", "a=b"}};
    CHECK(moe::epq_variables(environment) == expected);
    CHECK(moe::epq_variables(nullptr).empty());
}

void a_flag_is_not_taken_for_a_longer_one() {
    const std::vector<moe::FlagDefault> defaults = {{"EPQ_PREFETCH", "--prefetch", "2"}};
    CHECK(moe::name_variables("--prefetch-all and --prefetch", defaults) == "--prefetch-all and --prefetch (from EPQ_PREFETCH)");
    CHECK(moe::name_variables("nothing", defaults) == "nothing");
}

// The program itself: its environment counts, and a refusal that comes later names the variable too.
void the_engine_reads_its_environment() {
    const TempDir dir;
    const auto error_of = [&](const char * name, const char * value, Args args) {
        setenv(name, value, 1);
        const EngineResult result = EngineProcess(std::move(args)).run(dir.file("run"));
        unsetenv(name);
        CHECK(result.code == 2);
        return result.error_line();
    };
    CHECK(error_of("EPQ_RAM_BUDGET_MB", "none", basic).find("(from EPQ_RAM_BUDGET_MB)") != std::string::npos);
    const std::string model = tiny::write(tiny::Model(), dir.file("tiny"));
    CHECK(error_of("EPQ_EXPERT_USED", "9", {"-m", model, "-p", "x", "-n", "1"}) ==
          "--expert-used (from EPQ_EXPERT_USED): 9 of 8 experts");
    CHECK(error_of("EPQ_UNHEARD_OF", "1", basic).find("EPQ_UNHEARD_OF: this variable is not supported") == 0);
}

}  // namespace

int main() {
    check::run("accepted", accepted);
    check::run("refused", refused);
    check::run("help and version look at no variable", help_and_version_look_at_no_variable);
    check::run("only variables of the prefix are taken", only_variables_of_the_prefix_are_taken);
    check::run("a flag is not taken for a longer one", a_flag_is_not_taken_for_a_longer_one);
    check::run("the engine reads its environment", the_engine_reads_its_environment);
    return check::result();
}
