#include <signal.h>

#include "check.h"
#include "signals.h"
#include "spawn.h"

using launcher::program_candidates;
using launcher::program_environment;

static std::string value_of(const std::vector<std::string> & environment, const std::string & name) {
    for (const std::string & entry : environment) {
        if (entry.rfind(name + "=", 0) == 0) {
            return entry.substr(name.size() + 1);
        }
    }
    return "absent";
}

TEST(the_environment_is_what_was_asked_for_and_three_more) {
    const auto environment = program_environment({"A=1", "A=2", "LANG=C", "PATHS=x"});
    EQUAL(environment.size(), size_t{5});
    EQUAL(value_of(environment, "A"), "2");  // the last one counts
    EQUAL(value_of(environment, "LANG"), "C");
    EQUAL(value_of(environment, "PATHS"), "x");
    THAT(value_of(environment, "PATH") != "absent");
    THAT(value_of(environment, "HOME") != "absent");
}

TEST(a_program_name_is_sought_in_the_path_it_will_have) {
    const auto found = program_candidates("p", {"HOME=/", "PATH=/a::/b/c"});
    EQUAL(found.size(), size_t{2});
    EQUAL(found[0], "/a/p");
    EQUAL(found[1], "/b/c/p");
    EQUAL(program_candidates("./p", {"PATH=/a"}).at(0), "./p");
    EQUAL(program_candidates("p", {"PATH="}).size(), size_t{0});
}

TEST(signals_have_names) {
    EQUAL(launcher::signal_name(SIGSEGV), "SIGSEGV");
    EQUAL(launcher::signal_name(63), "signal 63");
}
