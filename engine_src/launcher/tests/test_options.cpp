#include "args_file.h"
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

TEST(options_of_the_verbs_for_a_host) {
    const Options cell = parse_options({"run", "--dir", "d", "--detach", "--log", "l", "--lock", "k", "--beat-file", "b",
                                        "--lease-s", "15", "--", "p"});
    THAT(cell.detach);
    EQUAL(cell.log + cell.lock + cell.beat_file, "lkb");
    EQUAL(*cell.lease_s, 15.0);
    const Options attended =
        parse_options({"attend", "--lock", "k", "--beat-file", "b", "--tail", "a b", "10", "--tail", "c", "0"});
    EQUAL(attended.tails.size(), size_t{2});
    EQUAL(attended.tails[0].file, "a b");
    EQUAL(attended.tails[0].bytes, 10);
    THAT(!attended.lease_s);
    const Options held = parse_options({"hold", "--lock", "k", "--owner", "{}", "--beat-file", "b", "--lease-s", "3",
                                        "--while", "w", "--log", "l"});
    EQUAL(held.owner + held.while_lock, "{}w");
    EQUAL(parse_options({"release", "--lock", "k", "--token", "t"}).token, "t");
    const Options digested = parse_options({"digest", "a", "--no-sha256", "b", "--", "--no-sha256"});
    THAT(digested.no_sha256);
    EQUAL(digested.paths.size(), size_t{3});
    EQUAL(digested.paths[2], "--no-sha256");
    EQUAL(parse_options({"inspect", "--dir", "d", "--proc-root", "p"}).proc_root, "p");
}

TEST(wrong_options_of_the_verbs_for_a_host_are_named) {
    EQUAL(refusal({"run", "--dir", "d", "--detach", "--", "p"}), "--detach needs --log FILE");
    EQUAL(refusal({"run", "--dir", "d", "--log", "l", "--", "p"}), "--log needs --detach");
    EQUAL(refusal({"run", "--dir", "d", "--beat-file", "b", "--", "p"}), "--beat-file needs --lease-s S");
    EQUAL(refusal({"run", "--dir", "d", "--lease-s", "3", "--", "p"}), "--lease-s needs --beat-file FILE");
    EQUAL(refusal({"run", "--detach=yes"}), "--detach takes no value");
    EQUAL(refusal({"attend", "--lock", "k"}), "attend needs --beat-file FILE");
    EQUAL(refusal({"attend", "--tail", "f"}), "--tail needs two values");
    EQUAL(refusal({"attend", "--tail", "f", "x"}), "--tail takes a whole number of at least 0, not 'x'");
    EQUAL(refusal({"attend", "--tail", "f", "1048577"}), "--tail takes at most 1048576 bytes, not '1048577'");
    EQUAL(refusal({"hold", "--lock", "k"}), "hold needs --beat-file FILE");
    EQUAL(refusal({"hold", "--lock", "k", "--beat-file", "b", "--owner", "{}", "--lease-s", "3", "--log", "l"}),
          "hold needs --while FILE");
    EQUAL(refusal({"release", "--lock", "k"}), "release needs --token T");
    EQUAL(refusal({"locked"}), "locked needs one FILE");
    EQUAL(refusal({"end", "a", "b"}), "end needs one FILE");
    EQUAL(refusal({"digest", ""}), "digest was given an empty path");
    EQUAL(refusal({"evict"}), "evict needs a path");
    EQUAL(refusal({"state", "x"}), "unexpected argument 'x'");
    EQUAL(refusal({"inspect"}), "inspect needs --dir DIR");
}

TEST(arguments_from_a_file_are_taken_as_they_are) {
    const check::TempDir dir;
    const auto from = [&](const std::string & text) {
        dir.write("args", text);
        return launcher::read_args({"--args-file", dir.path("args")});
    };
    const auto refused = [](const std::vector<std::string> & args) {
        return check::message_of<UsageError>([&] { launcher::read_args(args); });
    };
    const char text[] = "run\0\0--dir\0a b\n\"$(x)\"\xff";  // and the NUL that every literal ends with
    const auto args = from(std::string(text, sizeof text));
    EQUAL(args.size(), size_t{4});
    EQUAL(args[1], "");
    EQUAL(args[3], "a b\n\"$(x)\"\xff");
    EQUAL(from(std::string(200000, 'x') + std::string(1, '\0')).front().size(), size_t{200000});
    EQUAL(launcher::read_args({"state"}).size(), size_t{1});
    dir.write("cut", "run");
    EQUAL(refused({"--args-file", dir.path("cut")}),
          "--args-file " + dir.path("cut") + " does not end with a NUL: it is not whole");
    dir.write("empty", "");
    THAT(refused({"--args-file", dir.path("empty")}).find("not whole") != std::string::npos);
    THAT(refused({"--args-file", dir.path("absent")}).find("No such file or directory") != std::string::npos);
    THAT(refused({"--args-file", dir.path()}).find("Is a directory") != std::string::npos);
    THAT(refused({"--args-file"}).find("takes one file") != std::string::npos);
    THAT(refused({"--args-file", "a", "b"}).find("takes one file") != std::string::npos);
}
