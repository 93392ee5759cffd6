#include "cpu_level.h"

#include "error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
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
// Asked of the CPU itself: __builtin_cpu_supports answers no to everything with zig's run-time library.
class Cpuid {
public:
    Cpuid() {
        unsigned eax = 0;
        unsigned ebx = 0;
        unsigned edx = 0;
        if (__get_cpuid(1, &eax, &ebx, &leaf_1_c_, &edx) != 0 && bit(leaf_1_c_, 27)) {
            unsigned low = 0;
            unsigned high = 0;
            __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
            saved_ = low;
        }
        __get_cpuid_count(7, 0, &eax, &leaf_7_b_, &leaf_7_c_, &edx);
    }

    bool leaf_1_c(unsigned n) const { return bit(leaf_1_c_, n); }
    // Instructions on wider registers are there only if the kernel saves these.
    bool avx_1_c(unsigned n) const { return bit(leaf_1_c_, n) && (saved_ & 0x06) == 0x06; }
    bool avx_7_b(unsigned n) const { return bit(leaf_7_b_, n) && (saved_ & 0x06) == 0x06; }
    bool leaf_7_b(unsigned n) const { return bit(leaf_7_b_, n); }
    bool avx512_7_b(unsigned n) const { return bit(leaf_7_b_, n) && (saved_ & 0xe6) == 0xe6; }
    bool avx512_7_c(unsigned n) const { return bit(leaf_7_c_, n) && (saved_ & 0xe6) == 0xe6; }

private:
    static bool bit(unsigned word, unsigned n) { return ((word >> n) & 1) != 0; }

    unsigned leaf_1_c_ = 0;
    unsigned leaf_7_b_ = 0;
    unsigned leaf_7_c_ = 0;
    unsigned saved_ = 0;
};

std::string missing_here() {
    const std::string level = cpu_level();
    const Cpuid cpu;
    Missing missing;
    if (level != "baseline") {
        missing.need(cpu.leaf_1_c(20), "SSE4.2");
        missing.need(cpu.avx_7_b(5), "AVX2");
        missing.need(cpu.avx_1_c(12), "FMA");
        missing.need(cpu.avx_1_c(29), "F16C");
        missing.need(cpu.leaf_7_b(8), "BMI2");
    }
    if (level == "avx512") {
        missing.need(cpu.avx512_7_b(16), "AVX512F");
        missing.need(cpu.avx512_7_b(28), "AVX512CD");
        missing.need(cpu.avx512_7_b(31), "AVX512VL");
        missing.need(cpu.avx512_7_b(17), "AVX512DQ");
        missing.need(cpu.avx512_7_b(30), "AVX512BW");
        missing.need(cpu.avx512_7_c(11), "AVX512_VNNI");
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
