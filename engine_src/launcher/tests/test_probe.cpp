#include "check.h"
#include "probe.h"

using launcher::ProbeResult;
using launcher::run_probe;

static bool never() { return false; }

TEST(a_probe_without_a_file_has_no_read_figures) {
    const auto probe = run_probe(0.05, "", never);
    THAT(probe.has_value());
    THAT(*probe->compute_ms > 0);
    THAT(*probe->compute_min_ms <= *probe->compute_ms);
    THAT(probe->compute_reps >= 1);
    THAT(!probe->read_ms && !probe->read_bytes && !probe->read_direct);
    THAT(probe->wall_s >= 0.05);
}

TEST(a_probe_reads_the_same_amount_each_time) {
    const check::TempDir dir;
    dir.write("f", std::string(3 << 20, 'x'));
    const auto probe = run_probe(0.05, dir.path("f"), never);
    THAT(probe.has_value());
    THAT(probe->read_direct.has_value());
    EQUAL(*probe->read_bytes, 64 * 256 * 1024);
    THAT(probe->read_reps >= 1);
    THAT(*probe->read_ms > 0);
}

TEST(a_probe_file_that_cannot_serve_leaves_the_read_figures_empty) {
    const check::TempDir dir;
    dir.write("short", "x");
    for (const std::string & file : {dir.path("short"), dir.path("absent"), dir.path()}) {
        const auto probe = run_probe(0.01, file, never);
        THAT(probe.has_value());
        THAT(!probe->read_ms && !probe->read_direct);
        EQUAL(probe->read_reps, 0);
    }
}

TEST(a_stopped_probe_is_no_probe) {
    int asked = 0;
    THAT(!run_probe(60, "", [&] { return ++asked > 2; }));
    EQUAL(asked, 3);
}
