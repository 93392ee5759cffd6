#include <signal.h>
#include <sys/stat.h>

#include "check.h"
#include "errors.h"
#include "result.h"
#include "result_file.h"

using launcher::CellOutcome;
using launcher::judge;
using launcher::OutputError;
using launcher::ResultFile;
using launcher::RunRecord;

static RunRecord ended(std::optional<int> exit_code, std::optional<int> signal) {
    RunRecord record;
    record.outcome = CellOutcome{};
    record.outcome->exit_code = exit_code;
    record.outcome->signal = signal;
    return record;
}

TEST(status_of_programs_that_ended_by_themselves) {
    EQUAL(judge(ended(0, {})).status, "ok");
    EQUAL(judge(ended(3, {})).status, "failed");
    EQUAL(judge(ended({}, SIGSEGV)).status, "failed");
    EQUAL(judge(ended({}, SIGSEGV)).detail, "the program ended by SIGSEGV");
}

TEST(status_of_programs_that_were_ended) {
    RunRecord late = ended(0, {});
    late.outcome->stop_reason = "the time limit was reached";
    EQUAL(judge(late).status, "killed");
    RunRecord out_of_memory = ended({}, SIGKILL);
    EQUAL(judge(out_of_memory).status, "killed");
    out_of_memory.oom_kills = 1;
    THAT(judge(out_of_memory).detail.find("ran out of memory") != std::string::npos);
}

TEST(a_kill_by_the_cgroup_is_told_from_others) {
    RunRecord record = ended({}, SIGKILL);
    record.cgroup = launcher::CgroupRecord{};
    record.cgroup->limit_bytes = 4096;
    record.cgroup->usage.oom_kills = 0;
    record.oom_kills = 1;  // another process of the device
    THAT(judge(record).detail.find("4096") == std::string::npos);
    record.cgroup->usage.oom_kills = 1;
    EQUAL(judge(record).status, "killed");
    EQUAL(judge(record).detail, "the program ended by SIGKILL, for its cgroup's limit of 4096 bytes was reached");

    const auto told = [&] { return launcher::result_json(launcher::Options{}, record); };
    THAT(told().find("\"oom_killed\":true") != std::string::npos);
    record.outcome->killed_by_us = true;
    THAT(told().find("\"oom_killed\":false") != std::string::npos);
    record.cgroup->usage.oom_kills.reset();
    THAT(told().find("\"oom_killed\":null") != std::string::npos);
    record = ended(1, {});
    record.cgroup = launcher::CgroupRecord{};
    record.cgroup->usage.oom_kills = 1;  // a process that the program had started
    THAT(told().find("\"oom_killed\":false") != std::string::npos);
    EQUAL(judge(record).status, "failed");
}

TEST(a_program_that_used_what_its_cgroup_was_not_charged_for_is_shown) {
    RunRecord record = ended(0, {});
    record.cgroup = launcher::CgroupRecord{};
    const auto told = [&](const std::string & value) {
        const std::string json = launcher::result_json(launcher::Options{}, record);
        return json.find("\"uncharged_bytes\":" + value + ",") != std::string::npos;
    };
    record.outcome->peaks.rss_bytes = 8192;
    THAT(told("null"));  // the kernel keeps no peak
    record.cgroup->usage.peak_bytes = 4096;
    THAT(told("4096"));
    record.cgroup->usage.peak_bytes = 9000;
    THAT(told("0"));
    record.outcome->peaks.rss_bytes = -1;
    THAT(told("null"));  // never sampled
}

TEST(a_required_cgroup_that_cannot_be_had_is_no_start) {
    RunRecord record;
    record.cgroup = launcher::CgroupRecord{};
    record.cgroup->unavailable = "none here";
    record.cgroup->required = true;
    EQUAL(judge(record).status, "cgroup_unavailable");
    EQUAL(judge(record).detail, "no memory cgroup: none here");
    record.cgroup->required = false;
    record.outcome = ended(0, {}).outcome;
    EQUAL(judge(record).status, "ok");
}

TEST(status_of_programs_that_never_ran) {
    RunRecord absent = ended({}, {});
    absent.outcome->spawn_failure = "cannot start x: No such file or directory";
    EQUAL(judge(absent).status, "spawn_failed");
    RunRecord uncapped;
    uncapped.limit_test = launcher::LimitTest{false, "ignored here"};
    EQUAL(judge(uncapped).status, "limit_not_enforced");
    EQUAL(judge(uncapped).detail, "ignored here");
    RunRecord early;
    early.stop_reason = "the launcher received SIGTERM";
    EQUAL(judge(early).status, "killed");
}

TEST(a_result_appears_whole_and_replaces_an_old_one) {
    const check::TempDir dir;
    dir.write("a/b/result.json", "old");
    const auto fd = launcher::open_output_dir(dir.path("a/b"));
    {
        ResultFile result(fd, dir.path("a/b"));
        EQUAL(dir.read("a/b/result.json"), "");  // gone: it must not be taken for the new one
        result.commit("{}\n");
    }
    EQUAL(dir.read("a/b/result.json"), "{}\n");
    EQUAL(dir.read("a/b/.result.json.tmp"), "");
}

TEST(a_result_that_was_given_up_leaves_nothing) {
    const check::TempDir dir;
    const auto fd = launcher::open_output_dir(dir.path("new/dir"));
    { const ResultFile result(fd, dir.path("new/dir")); }
    struct stat info {};
    THAT(stat(dir.path("new/dir/.result.json.tmp").c_str(), &info) != 0);
}

TEST(an_output_directory_that_is_a_file_is_refused) {
    const check::TempDir dir;
    dir.write("file", "x");
    const std::string message = check::message_of<OutputError>([&] { launcher::open_output_dir(dir.path("file")); });
    EQUAL(message, "cannot open the directory " + dir.path("file") + ": Not a directory");
}
