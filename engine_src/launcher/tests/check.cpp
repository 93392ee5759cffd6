#include "check.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

namespace check {

static std::vector<Case> & cases() {
    static std::vector<Case> all;
    return all;
}

Case::Case(const char * case_name, void (*case_body)()) : name(case_name), body(case_body) { cases().push_back(*this); }

TempDir::TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "launcher-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
        throw Failed("cannot make a temporary directory");
    }
    root_ = pattern;
}

TempDir::~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
}

void TempDir::write(const std::string & name, const std::string & text) const {
    const std::filesystem::path file = path(name);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
}

std::string TempDir::read(const std::string & name) const {
    std::ifstream file(path(name), std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace check

// Without arguments all tests run; with one, those whose name contains it.
int main(int argc, char ** argv) {
    int failed = 0;
    int ran = 0;
    for (const check::Case & one : check::cases()) {
        if (argc > 1 && std::strstr(one.name, argv[1]) == nullptr) {
            continue;
        }
        ++ran;
        try {
            one.body();
        } catch (const std::exception & error) {
            ++failed;
            std::printf("FAILED %s\n    %s\n", one.name, error.what());
        }
    }
    std::printf("%d tests, %d failed\n", ran, failed);
    return failed == 0 && ran > 0 ? 0 : 1;
}
