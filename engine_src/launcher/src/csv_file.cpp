#include "csv_file.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

namespace launcher {

void CsvFile::append(std::string_view piece) {
    if (piece.size() > buffer_.size() - used_) {
        flush();
    }
    if (piece.size() > buffer_.size()) {
        return;  // no cell is as long as that
    }
    std::memcpy(buffer_.data() + used_, piece.data(), piece.size());
    used_ += piece.size();
}

void CsvFile::separate() {
    if (row_begun_) {
        append(",");
    }
    row_begun_ = true;
}

void CsvFile::text(std::string_view cell) {
    separate();
    if (!cell.empty()) {
        append(cell);
    }
}

void CsvFile::integer(int64_t value) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    text({digits, static_cast<size_t>(end - digits)});
}

void CsvFile::integer(std::optional<int64_t> value) {
    if (value) {
        integer(*value);
    } else {
        text({});
    }
}

void CsvFile::decimal(std::optional<double> value) {
    if (!value || !std::isfinite(*value) || std::fabs(*value) > 1e15) {
        text({});
        return;
    }
    const auto hundredths = static_cast<int64_t>(std::llround(std::fabs(*value) * 100));
    char digits[32];
    char * at = digits;
    if (*value < 0 && hundredths > 0) {
        *at++ = '-';
    }
    at = std::to_chars(at, digits + sizeof digits, hundredths / 100).ptr;
    *at++ = '.';
    *at++ = static_cast<char>('0' + hundredths / 10 % 10);
    *at++ = static_cast<char>('0' + hundredths % 10);
    text({digits, static_cast<size_t>(at - digits)});
}

void CsvFile::end_row() {
    append("\n");
    row_begun_ = false;
}

void CsvFile::flush() {
    size_t done = 0;
    while (done < used_) {
        const ssize_t wrote = write(fd_.get(), buffer_.data() + done, used_ - done);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            // The disk may be full. The rows are lost; the run goes on, and the result says so.
            error_ = error_ != 0 ? error_ : (wrote < 0 ? errno : EIO);
            break;
        }
        done += static_cast<size_t>(wrote);
    }
    used_ = 0;
}

}  // namespace launcher
