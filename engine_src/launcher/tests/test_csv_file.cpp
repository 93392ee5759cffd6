#include <fcntl.h>

#include <cerrno>

#include "check.h"
#include "csv_file.h"

using launcher::CsvFile;
using launcher::UniqueFd;

static UniqueFd create(const std::string & path) {
    return UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

TEST(csv_cells_are_separated_and_missing_ones_empty) {
    const check::TempDir dir;
    CsvFile table(create(dir.path("t.csv")));
    table.text("a");
    table.integer(int64_t{-7});
    table.integer(std::optional<int64_t>());
    table.integer_or_empty(-1);
    table.decimal(36.6);
    table.decimal(-0.004);
    table.decimal(std::nullopt);
    table.end_row();
    table.integer(std::optional<int64_t>(INT64_MAX));
    table.decimal(-12.345);
    table.end_row();
    EQUAL(dir.read("t.csv"), "");  // buffered until asked
    table.flush();
    EQUAL(dir.read("t.csv"), "a,-7,,,36.60,0.00,\n9223372036854775807,-12.35\n");
    EQUAL(table.error(), 0);
}

TEST(csv_a_full_buffer_is_written_without_a_gap) {
    const check::TempDir dir;
    CsvFile table(create(dir.path("t.csv")));
    std::string expected;
    for (int i = 0; i < 20000; ++i) {
        table.integer(int64_t{i});
        table.end_row();
        expected += std::to_string(i) + "\n";
    }
    table.flush();
    THAT(dir.read("t.csv") == expected);
}

TEST(csv_a_full_disk_is_remembered_and_does_not_stop_the_run) {
    CsvFile table(UniqueFd(open("/dev/full", O_WRONLY | O_CLOEXEC)));
    table.text("row");
    table.end_row();
    table.flush();
    table.text("row");
    table.flush();
    EQUAL(table.error(), ENOSPC);
}
