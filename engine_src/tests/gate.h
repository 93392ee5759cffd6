// What the gates of the streaming engine share: a tiny model on disk with its plain run, and the runs that
// must equal it.
#pragma once

#include "decoding.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace gate {

using namespace decoding;

// Four layers of eight experts with a top-k of two: 32 experts, of which a token uses 8.
inline tiny::Model small_model() { return model(GGML_TYPE_Q8_0, 4); }

// Everywhere as wide as is needed for its experts to change what comes next so much that all 32 have their turn.
inline tiny::Model wide_model() {
    tiny::Model m = small_model();
    m.n_embd = m.n_ff_exp = 256;
    return m;
}

constexpr uint64_t kSmall = 12;  // slots: every layer evicts, and still some experts are found again

class Bench {
public:
    explicit Bench(const tiny::Model & m = small_model())
        : path_(tiny::write(m, dir_.file("m"))),
          plain_(run_plain(path_, 1)),
          slot_bytes_(decoding::slot_bytes(path_)) {}

    // With room for `slots` experts; 0: without a cache.
    PagerOptions options(uint64_t slots) const {
        PagerOptions o;
        o.model_path = path_;
        o.arch = "qwen3moe";
        o.n_batch = kBatch;
        o.cache_bytes = slots * slot_bytes_;
        return o;
    }
    const Run & plain() const { return plain_; }
    const std::string & path() const { return path_; }
    std::string file(const std::string & name) const { return dir_.file(name); }

private:
    TempDir dir_;
    std::string path_;
    Run plain_;
    uint64_t slot_bytes_;
};

inline void check_equal(const Run & plain, const Run & run) {
    CHECK(same_bits(plain, run));
    CHECK(!run.error);
    CHECK(run.counters.requests == run.counters.hits + run.counters.misses);
}

// The rows of a trace, each by column.
using Rows = std::vector<std::map<std::string, std::string>>;

inline Rows read_trace(const std::string & path) {
    std::ifstream in(path);
    std::vector<std::string> columns;
    Rows rows;
    for (std::string line; std::getline(in, line);) {
        if (line.rfind('#', 0) == 0) {
            continue;
        }
        std::vector<std::string> fields;
        std::istringstream cells(line);
        for (std::string field; std::getline(cells, field, ',');) {
            fields.push_back(field);
        }
        if (columns.empty()) {
            columns = fields;
            continue;
        }
        CHECK(fields.size() == columns.size());
        rows.emplace_back();
        for (size_t i = 0; i < std::min(fields.size(), columns.size()); ++i) {
            rows.back()[columns[i]] = fields[i];
        }
    }
    return rows;
}

inline size_t count(const Rows & rows, const std::string & column, const std::string & value) {
    return static_cast<size_t>(
        std::count_if(rows.begin(), rows.end(), [&](const auto & row) { return row.at(column) == value; }));
}

}  // namespace gate
