// A test runner of fifty lines: the launcher depends on nothing but libc, and so do its tests.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace check {

struct Failed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Case {
    Case(const char * name, void (*body)());
    const char * name;
    void (*body)();
};

template <typename A, typename B>
void equal(const A & got, const B & expected, const char * text, const char * file, int line) {
    if (!(got == expected)) {
        std::ostringstream message;
        message << file << ":" << line << ": " << text << ": got " << got << ", expected " << expected;
        throw Failed(message.str());
    }
}

inline void that(bool holds, const char * text, const char * file, int line) {
    if (!holds) {
        throw Failed(std::string(file) + ":" + std::to_string(line) + ": does not hold: " + text);
    }
}

// The message of the E that the call throws.
template <typename E, typename Call>
std::string message_of(Call call) {
    try {
        call();
    } catch (const E & error) {
        return error.what();
    }
    throw Failed("nothing was thrown");
}

// A directory of its own that goes when the test ends.
class TempDir {
public:
    TempDir();
    ~TempDir();
    TempDir(const TempDir &) = delete;
    TempDir & operator=(const TempDir &) = delete;
    std::string path(const std::string & name = "") const { return name.empty() ? root_ : root_ + "/" + name; }
    // Writes a file below it, with the directories on the way.
    void write(const std::string & name, const std::string & text) const;
    std::string read(const std::string & name) const;

private:
    std::string root_;
};

}  // namespace check

#define TEST(name)                                        \
    static void name();                                   \
    static const check::Case case_##name(#name, &(name)); \
    static void name()
#define EQUAL(got, expected) check::equal((got), (expected), #got, __FILE__, __LINE__)
#define THAT(condition) check::that((condition), #condition, __FILE__, __LINE__)
