// Which CPUs an aarch64 level refuses, and by which names.
#include "cpu_level.h"

#include "check.h"

#include <string>

using namespace moe;

namespace {

const std::string v82 = "armv8.2-a+dotprod+fp16";
const std::string i8mm = v82 + "+i8mm";

constexpr uint64_t bit(unsigned n) { return uint64_t{1} << n; }

// AT_HWCAP as Linux gives it
constexpr uint64_t cortex_a53 = 0xff;                                                   // fp to crc32
constexpr uint64_t cortex_a76 = cortex_a53 | bit(8) | bit(9) | bit(10) | bit(11) | bit(12) | bit(15) | bit(20);

void the_lowest_level_runs_everywhere() { CHECK(missing_of_arm_level("armv8-a", 0, 0).empty()); }

void an_old_core_is_told_all_that_it_lacks() {
    CHECK(missing_of_arm_level(v82, cortex_a53, 0) == "atomics, asimdrdm, fphp, asimdhp, asimddp");
    CHECK(missing_of_arm_level(i8mm, cortex_a53, 0) == "atomics, asimdrdm, fphp, asimdhp, asimddp, i8mm");
}

void each_level_needs_what_it_adds() {
    CHECK(missing_of_arm_level(v82, cortex_a76, 0).empty());
    CHECK(missing_of_arm_level(i8mm, cortex_a76, 0) == "i8mm");
    CHECK(missing_of_arm_level(i8mm, cortex_a76, bit(13)).empty());
    CHECK(missing_of_arm_level(v82, cortex_a76 & ~bit(20), bit(13)) == "asimddp");
}

void this_build_runs_here_or_the_other_tests_could_not() {
    CHECK(!cpu_level().empty());
    require_cpu();
}

}  // namespace

int main() {
    check::run("the lowest level runs everywhere", the_lowest_level_runs_everywhere);
    check::run("an old core is told all that it lacks", an_old_core_is_told_all_that_it_lacks);
    check::run("each level needs what it adds", each_level_needs_what_it_adds);
    check::run("this build runs here", this_build_runs_here_or_the_other_tests_could_not);
    return check::result();
}
