#include "cpu_level.h"

#include "error.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace moe {

namespace {

class Missing {
public:
    void need(bool present, const char * name) {
        if (!present) {
            names_ += names_.empty() ? name : std::string(", ") + name;
        }
    }

    const std::string & names() const { return names_; }

private:
    std::string names_;
};

#if defined(__x86_64__)
std::string missing_here() {
    const std::string level = cpu_level();
    Missing missing;
    __builtin_cpu_init();
    if (level != "baseline") {
        missing.need(__builtin_cpu_supports("sse4.2"), "SSE4.2");
        missing.need(__builtin_cpu_supports("avx2"), "AVX2");
        missing.need(__builtin_cpu_supports("fma"), "FMA");
        missing.need(__builtin_cpu_supports("f16c"), "F16C");
        missing.need(__builtin_cpu_supports("bmi2"), "BMI2");
    }
    if (level == "avx512") {
        missing.need(__builtin_cpu_supports("avx512f"), "AVX512F");
        missing.need(__builtin_cpu_supports("avx512cd"), "AVX512CD");
        missing.need(__builtin_cpu_supports("avx512vl"), "AVX512VL");
        missing.need(__builtin_cpu_supports("avx512dq"), "AVX512DQ");
        missing.need(__builtin_cpu_supports("avx512bw"), "AVX512BW");
        missing.need(__builtin_cpu_supports("avx512vnni"), "AVX512_VNNI");
    }
    return missing.names();
}
#elif defined(__aarch64__)
std::string missing_here() { return missing_of_arm_level(cpu_level(), getauxval(AT_HWCAP), getauxval(AT_HWCAP2)); }
#else
std::string missing_here() { return ""; }
#endif

}  // namespace

std::string cpu_level() { return MOE_CPU_LEVEL; }

std::string missing_of_arm_level(const std::string & level, uint64_t hwcap, uint64_t hwcap2) {
    // bits of the kernel's interface (asm/hwcap.h of aarch64), spelled out so that every machine can test this
    const auto has = [](uint64_t caps, unsigned bit) { return ((caps >> bit) & 1) != 0; };
    Missing missing;
    if (level.rfind("armv8.2-a", 0) == 0) {
        // armv8.2-a itself: a compiler uses these two on its own
        missing.need(has(hwcap, 8), "atomics");
        missing.need(has(hwcap, 12), "asimdrdm");
    }
    if (level.find("+fp16") != std::string::npos) {
        missing.need(has(hwcap, 9), "fphp");
        missing.need(has(hwcap, 10), "asimdhp");
    }
    if (level.find("+dotprod") != std::string::npos) {
        missing.need(has(hwcap, 20), "asimddp");
    }
    if (level.find("+i8mm") != std::string::npos) {
        missing.need(has(hwcap2, 13), "i8mm");
    }
    return missing.names();
}

void require_cpu() {
    const std::string missing = missing_here();
    if (!missing.empty()) {
        throw Error(ExitCode::other, "this build is for " + cpu_level() + " processors, but this one lacks " + missing +
                                         "; build with a lower MOE_CPU_LEVEL");
    }
}

}  // namespace moe
