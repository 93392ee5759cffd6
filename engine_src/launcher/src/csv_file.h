// A table that grows while the program runs. Rows are gathered in a fixed buffer and written about once a
// second: one write per row would cost more than reading the row, and a crash loses at most that second.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "unique_fd.h"

namespace launcher {

class CsvFile {
public:
    explicit CsvFile(UniqueFd fd) : fd_(std::move(fd)) {}
    CsvFile(const CsvFile &) = delete;
    CsvFile & operator=(const CsvFile &) = delete;

    void text(std::string_view cell);  // written as it is: the caller keeps commas and quotes out
    void integer(int64_t value);
    void integer(std::optional<int64_t> value);  // empty cell when there is none
    void decimal(std::optional<double> value);   // two digits after the point
    void end_row();
    void flush();

    // Negative values stand for "not available" in the samples: an empty cell.
    void integer_or_empty(int64_t value) { value < 0 ? text({}) : integer(value); }

    // errno of the first write that failed; 0 when all went well.
    int error() const { return error_; }

private:
    void append(std::string_view piece);
    void separate();

    UniqueFd fd_;
    std::array<char, 16384> buffer_{};
    size_t used_ = 0;
    bool row_begun_ = false;
    int error_ = 0;
};

}  // namespace launcher
