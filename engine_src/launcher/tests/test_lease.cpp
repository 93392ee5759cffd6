#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "check.h"
#include "clocks.h"
#include "lease.h"
#include "stop.h"

using launcher::Lease;
using launcher::monotonic_ns;

constexpr int64_t ms_ns = 1000000;

static int64_t now_ms() { return monotonic_ns() / ms_ns; }

static void wait_past(const Lease & lease) {
    while (monotonic_ns() <= lease.due_ns()) {
        launcher::sleep_ns(ms_ns);
    }
}

// Not over before its time. Whoever asks may not be running for so long that it ends meanwhile.
static bool lasts(Lease & lease) { return !lease.over() || monotonic_ns() > lease.due_ns(); }

TEST(a_beat_is_one_number_of_the_monotonic_clock) {
    const check::TempDir dir;
    const int64_t before = now_ms();
    EQUAL(launcher::write_beat(dir.path("beat")), 0);
    const int64_t beat = std::stoll(dir.read("beat"));
    THAT(before <= beat && beat <= now_ms());
    EQUAL(launcher::write_beat(dir.path("no/beat")), ENOENT);
}

TEST(a_lease_lasts_as_long_as_it_says_without_any_file) {
    const check::TempDir dir;
    const int64_t begun = monotonic_ns();
    Lease lease(dir.path("beat"), 0.1);
    THAT(lease.due_ns() >= begun + 100 * ms_ns && lease.due_ns() <= monotonic_ns() + 100 * ms_ns);
    THAT(lasts(lease));
    wait_past(lease);
    THAT(lease.over());
}

TEST(a_beat_prolongs_a_lease_even_one_that_was_over) {
    const check::TempDir dir;
    Lease lease(dir.path("beat"), 0.2);
    const auto beat_and_be_due = [&] {
        wait_past(lease);
        launcher::write_beat(dir.path("beat"));
        lasts(lease);  // it looks
        EQUAL(lease.due_ns(), (std::stoll(dir.read("beat")) + 200) * ms_ns);
        THAT(lasts(lease));
    };
    beat_and_be_due();
    wait_past(lease);
    THAT(lease.over());
    beat_and_be_due();
}

TEST(what_is_no_sign_of_life_counts_for_nothing) {
    const check::TempDir dir;
    const int64_t begun_ms = now_ms();
    Lease lease(dir.path("beat"), 0.1);
    wait_past(lease);
    for (const std::string & text :
         {std::string(), std::string("\n"), std::string("now"), std::to_string(now_ms() + 100000) /* before a restart */,
          std::string("0"), std::to_string(begun_ms - 500), std::to_string(now_ms()) + " x", "-" + std::to_string(now_ms()),
          std::string("99999999999999999999"), std::string(4096, '1')}) {
        dir.write("beat", text);
        check::that(lease.over(), text.c_str(), __FILE__, __LINE__);
    }
    const int64_t beat_ms = now_ms();
    dir.write("beat", std::to_string(beat_ms));  // without its newline it is whole all the same
    THAT(lasts(lease));
    EQUAL(lease.due_ns(), (beat_ms + 100) * ms_ns);
}

TEST(a_stop_knows_that_the_host_was_lost_whatever_came_first) {
    const check::TempDir dir;
    launcher::Signals signals(launcher::Signals::Parent::ignored);
    launcher::Stop alone(signals, std::nullopt);
    THAT(!alone.wait_until(monotonic_ns() + ms_ns));
    const Lease first(dir.path("beat"), 0.25);
    launcher::Stop lost(signals, first);
    THAT(!lost.asked() || monotonic_ns() > first.due_ns());
    while (!lost.wait_until(INT64_MAX)) {
        // woken early, as by SIGCONT; but it does not sleep through the end of the lease
    }
    EQUAL(lost.reason(), "the host gave no sign of life for 0.25 s");
    THAT(lost.host_lost());

    const Lease second(dir.path("beat"), 0.2);
    launcher::Stop both(signals, second);
    kill(getpid(), SIGTERM);
    THAT(both.asked());
    THAT(!both.host_lost() || monotonic_ns() > second.due_ns());
    wait_past(second);
    THAT(both.asked());
    EQUAL(both.reason(), "the launcher received SIGTERM");
    THAT(both.host_lost());
}
