#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "check.h"
#include "clocks.h"
#include "lease.h"
#include "stop.h"

using launcher::Lease;
using launcher::monotonic_ns;

static int64_t now_ms() { return monotonic_ns() / 1000000; }

static void wait_ms(int64_t ms) { launcher::sleep_ns(ms * 1000000); }

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
    THAT(!lease.over());
    THAT(lease.due_ns() >= begun + 100 * 1000000);
    wait_ms(120);
    THAT(lease.over());
}

TEST(a_beat_prolongs_a_lease_even_one_that_was_over) {
    const check::TempDir dir;
    Lease lease(dir.path("beat"), 0.2);
    wait_ms(150);
    launcher::write_beat(dir.path("beat"));
    wait_ms(100);
    THAT(!lease.over());
    wait_ms(150);
    THAT(lease.over());
    launcher::write_beat(dir.path("beat"));
    THAT(!lease.over());
}

TEST(what_is_no_sign_of_life_counts_for_nothing) {
    const check::TempDir dir;
    const int64_t begun_ms = now_ms();
    Lease lease(dir.path("beat"), 0.1);
    wait_ms(120);
    for (const std::string & text :
         {std::string(), std::string("\n"), std::string("now"), std::to_string(now_ms() + 100000) /* before a restart */,
          std::string("0"), std::to_string(begun_ms - 500), std::to_string(now_ms()) + " x", "-" + std::to_string(now_ms()),
          std::string("99999999999999999999"), std::string(4096, '1')}) {
        dir.write("beat", text);
        check::that(lease.over(), text.c_str(), __FILE__, __LINE__);
    }
    dir.write("beat", std::to_string(now_ms()));  // without its newline it is whole all the same
    THAT(!lease.over());
}

TEST(a_stop_knows_that_the_host_was_lost_whatever_came_first) {
    const check::TempDir dir;
    launcher::Signals signals(launcher::Signals::Parent::ignored);
    launcher::Stop alone(signals, std::nullopt);
    THAT(!alone.wait_until(monotonic_ns() + 1000000));
    launcher::Stop lost(signals, Lease(dir.path("beat"), 0.25));
    THAT(!lost.asked());
    const int64_t begun = monotonic_ns();
    THAT(lost.wait_until(INT64_MAX));  // it does not sleep through the end of the lease
    THAT(monotonic_ns() - begun < 2000 * 1000000LL);
    EQUAL(lost.reason(), "the host gave no sign of life for 0.25 s");
    THAT(lost.host_lost());

    launcher::Stop both(signals, Lease(dir.path("beat"), 0.2));
    kill(getpid(), SIGTERM);
    THAT(both.asked());
    THAT(!both.host_lost());
    wait_ms(250);
    THAT(both.asked());
    EQUAL(both.reason(), "the launcher received SIGTERM");
    THAT(both.host_lost());
}
