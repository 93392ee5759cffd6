// The result appears whole or not at all, and a disk that the program filled does not prevent it.
#pragma once

#include <string>

#include "unique_fd.h"

namespace launcher {

// DIR, made with its parents where missing. Throws OutputError.
UniqueFd open_output_dir(const std::string & dir);

// A new empty file in it. Throws OutputError.
UniqueFd create_output(const UniqueFd & dir, const std::string & dir_name, const std::string & name);

class ResultFile {
public:
    // Removes the result of an earlier run, so that it cannot be taken for this one's, and reserves room on the
    // disk. Throws OutputError.
    ResultFile(const UniqueFd & dir, std::string dir_name);
    ResultFile(const ResultFile &) = delete;
    ResultFile & operator=(const ResultFile &) = delete;
    ~ResultFile();

    // Throws OutputError.
    void commit(const std::string & text);

private:
    int dir_fd_;
    std::string dir_name_;
    UniqueFd fd_;
    bool committed_ = false;
};

}  // namespace launcher
