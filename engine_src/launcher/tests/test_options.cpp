#include "check.h"
#include "errors.h"
#include "options.h"

using launcher::Options;
using launcher::parse_options;
using launcher::UsageError;
using launcher::Verb;

static std::string refusal(const std::vector<std::string> & args) {
    return check::message_of<UsageError>([&] { parse_options(args); });
}

TEST(options_of_a_run) {
    const Options options = parse_options({"run", "--dir", "out", "--data-limit-bytes=1000", "--time-limit-s", "2.5",
                                           "--env", "A=b=c", "--env", "E=", "--probe-s", "0", "--cwd", "/tmp", "--",
                                           "prog", "--dir", "x", "--", ""});
    THAT(options.verb == Verb::run);
    EQUAL(options.dir, "out");
    EQUAL(*options.data_limit_bytes, 1000);
    EQUAL(*options.time_limit_s, 2.5);
    EQUAL(options.probe_s, 0.0);
    EQUAL(options.sample_ms, 20);
    EQUAL(options.device_ms, 250);
    THAT(!options.cgroup_limit_bytes);
    EQUAL(options.env.size(), size_t{2});
    EQUAL(options.env[0], "A=b=c");
    EQUAL(options.program.size(), size_t{5});  // all after the first --, untouched
    EQUAL(options.program[4], "");
}

TEST(options_that_are_wrong_are_named) {
    EQUAL(refusal({"run", "--dir", "d"}), "run needs a program after --");
    EQUAL(refusal({"run", "--", "p"}), "run needs --dir DIR");
    EQUAL(refusal({"run", "--dir", "--", "p"}), "--dir needs a value");
    EQUAL(refusal({"run", "--colour", "red"}), "unknown option --colour");
    EQUAL(refusal({"run", "prog"}), "unexpected argument 'prog'; the program to run comes after --");
    EQUAL(refusal({"state", "--dir", "d"}), "--dir has no meaning for 'state'");
    EQUAL(refusal({"selftest"}), "selftest needs --data-limit-bytes N or --cgroup-limit-bytes N");
    EQUAL(refusal({"run", "--sample-ms", "0"}), "--sample-ms takes a whole number of at least 1, not '0'");
    EQUAL(refusal({"run", "--sample-ms", "20ms"}), "--sample-ms takes a whole number of at least 1, not '20ms'");
    EQUAL(refusal({"run", "--time-limit-s", "0"}), "--time-limit-s takes seconds above 0, not '0'");
    EQUAL(refusal({"run", "--time-limit-s", "nan"}), "--time-limit-s takes seconds above 0, not 'nan'");
    EQUAL(refusal({"probe", "--probe-s", "-1"}), "--probe-s takes seconds (0 for none), not '-1'");
    EQUAL(refusal({"run", "--cgroup-limit-bytes", "1", "--cgroup-mode", "on"}),
          "--cgroup-mode is wanted or required, not 'on'");
    EQUAL(refusal({"run", "--dir", "d", "--cgroup-mode", "wanted", "--", "p"}),
          "--cgroup-mode needs --cgroup-limit-bytes N");
    EQUAL(refusal({"run", "--env", "=x"}), "--env takes NAME=VALUE, not '=x'");
    THAT(refusal({}).find("a command is missing") == 0);
    THAT(refusal({"start"}).find("unknown command 'start'") == 0);
}
