#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "data_limit.h"

TEST(the_limit_is_enforced_on_this_kernel) {
    const launcher::LimitTest test = launcher::test_data_limit(256 << 20);
    THAT(test.enforced);
    rlimit mine{};
    getrlimit(RLIMIT_DATA, &mine);
    THAT(mine.rlim_cur == RLIM_INFINITY || mine.rlim_cur != (256 << 20));  // only the child was limited
}

TEST(a_limit_that_cannot_be_exceeded_anyway_proves_nothing) {
    const launcher::LimitTest test = launcher::test_data_limit(int64_t{1} << 60);
    THAT(!test.enforced);
    THAT(test.detail.find("cannot tell") == 0);
}
