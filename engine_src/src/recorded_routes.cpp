#include "recorded_routes.h"

#include "error.h"
#include "process.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>

namespace moe {

namespace {

[[noreturn]] void refuse(const std::string & path, uint64_t line, const std::string & what) {
    refuse_trace(path + ":" + std::to_string(line), what);
}

auto order(const RecordedRow & row) { return std::tie(row.step, row.layer, row.slot); }

const char * const kRecordAgain = "; the file is damaged or cut off: record the trace again";

std::optional<uint64_t> number(std::string_view text, uint64_t limit) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value > limit) {
        return std::nullopt;
    }
    return value;
}

// "key=value" of a preamble line. From the right: the model's path in front may contain anything.
std::optional<uint64_t> preamble_number(std::string_view line, const std::string & key, uint64_t limit) {
    const std::string start = " " + key + "=";
    const size_t at = line.rfind(start);
    if (at == std::string_view::npos) {
        return std::nullopt;
    }
    const std::string_view rest = line.substr(at + start.size());
    return number(rest.substr(0, rest.find(' ')), limit);
}

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

class TraceReader {
public:
    TraceReader(const std::string & path, uint32_t top_k) : path_(path), top_k_(top_k) {}

    RecordedRoutes read() {
        const std::string text = read_file(path_, "route trace");
        for (size_t begin = 0; begin < text.size();) {
            const size_t end = std::min(text.find('\n', begin), text.size());
            std::string_view line = std::string_view(text).substr(begin, end - begin);
            if (!line.empty() && line.back() == '\r') {
                line.remove_suffix(1);
            }
            ++line_;
            take(line);
            begin = end + 1;
        }
        if (trace_.rows.empty()) {
            refuse_trace(path_, std::string("no routes") + kRecordAgain);
        }
        std::sort(trace_.rows.begin(), trace_.rows.end(),
                  [](const RecordedRow & a, const RecordedRow & b) { return order(a) < order(b); });
        check_cells();
        return std::move(trace_);
    }

private:
    enum Column { turn, phase, step, layer, slot, expert, n_columns };
    static constexpr std::array<const char *, n_columns> kColumns = {"turn",  "phase", "step",
                                                                     "layer", "slot",  "expert"};

    [[noreturn]] void fail(const std::string & what) const { refuse(path_, line_, what); }

    void take(std::string_view line) {
        if (line_ == 1) {
            if (line != "# route_trace v1") {
                fail("does not start with '# route_trace v1': give a trace that --route-trace has written");
            }
        } else if (starts_with(line, "#")) {
            take_comment(line);
        } else if (n_fields_ == 0) {
            take_header(line);
        } else {
            take_row(line);
        }
    }

    // Facts precede the header: rows are judged by them.
    void take_comment(std::string_view line) {
        if (n_fields_ == 0 && starts_with(line, "# model=")) {
            take_model(line);
        } else if (n_fields_ == 0 && starts_with(line, "# layer=")) {
            take_layer(line);
        }
    }

    void take_model(std::string_view line) {
        constexpr uint64_t most = std::numeric_limits<uint16_t>::max();
        const auto n_expert = preamble_number(line, "n_expert", most);
        const auto n_used = preamble_number(line, "n_expert_used", most);
        if (!n_expert || !n_used || *n_used == 0 || *n_used > *n_expert) {
            fail(std::string("no usable n_expert= and n_expert_used=") + kRecordAgain);
        }
        trace_.n_expert = static_cast<uint32_t>(*n_expert);
        trace_.n_used = static_cast<uint32_t>(*n_used);
    }

    void take_layer(std::string_view line) {
        const auto number_of = preamble_number(line, "layer", std::numeric_limits<uint16_t>::max());
        const auto bytes = preamble_number(line, "expert_bytes", uint64_t{1} << 40);
        if (!number_of || !bytes) {
            fail(std::string("no usable layer= and expert_bytes=") + kRecordAgain);
        }
        const RecordedLayer of_layer{*bytes, preamble_number(line, "slot_bytes", uint64_t{1} << 40)};
        if (of_layer.slot_bytes && *of_layer.slot_bytes < of_layer.expert_bytes) {
            fail("slot_bytes below expert_bytes" + std::string(kRecordAgain));
        }
        if (!trace_.layers.emplace(static_cast<uint32_t>(*number_of), of_layer).second) {
            fail("layer " + std::to_string(*number_of) + " for the second time: give a single trace");
        }
    }

    void take_header(std::string_view line) {
        split(line);
        for (size_t c = 0; c < n_columns; ++c) {
            const auto it = std::find(fields_.begin(), fields_.end(), kColumns[c]);
            if (it == fields_.end()) {
                fail(std::string("the header has no column '") + kColumns[c] + "'" + kRecordAgain);
            }
            column_[c] = static_cast<size_t>(it - fields_.begin());
        }
        n_fields_ = fields_.size();
        if (trace_.n_expert == 0) {
            fail(std::string("no '# model=' line before the header") + kRecordAgain);
        }
        if (std::none_of(trace_.layers.begin(), trace_.layers.end(),
                         [](const auto & l) { return l.second.expert_bytes > 0; })) {
            fail("no '# layer=' line with expert_bytes before the header: the trace must say what its experts weigh");
        }
        const auto with_slots = [](const auto & l) { return l.second.expert_bytes > 0 && l.second.slot_bytes; };
        if (std::any_of(trace_.layers.begin(), trace_.layers.end(), with_slots) && !trace_.counts_slots()) {
            fail(std::string("slot_bytes for some layers only") + kRecordAgain);
        }
        if (trace_.n_used != top_k_) {
            refuse_trace(path_, "routes " + std::to_string(trace_.n_used) + " experts per token, this run " +
                                    std::to_string(top_k_) + ": give --expert-used " + std::to_string(trace_.n_used));
        }
    }

    void take_row(std::string_view line) {
        split(line);
        if (fields_.size() != n_fields_) {
            fail(std::to_string(fields_.size()) + " columns, the header has " + std::to_string(n_fields_) +
                 kRecordAgain);
        }
        const uint64_t turn_of = value(turn, std::numeric_limits<uint32_t>::max());
        if (trace_.rows.empty()) {
            turn_ = turn_of;
        } else if (turn_of != turn_) {
            fail("turn " + std::to_string(turn_of) + " after turn " + std::to_string(turn_) +
                 ": only traces of one turn can be forced");
        }
        RecordedRow row;
        const bool decode = value(phase, 1) == 1;
        row.step = static_cast<uint32_t>(value(step, std::numeric_limits<uint32_t>::max() - 1));
        row.layer = static_cast<uint16_t>(value(layer, std::numeric_limits<uint16_t>::max()));
        row.slot = static_cast<uint16_t>(value(slot, trace_.n_used - 1));
        row.expert = static_cast<int32_t>(value(expert, trace_.n_expert - 1));
        row.line = line_;
        const auto known = trace_.layers.find(row.layer);
        if (known == trace_.layers.end() || known->second.expert_bytes == 0) {
            fail("a route of layer " + std::to_string(row.layer) + ", to which the preamble gives no expert_bytes" +
                 kRecordAgain);
        }
        if (!decode) {
            trace_.n_prompt = std::max<uint64_t>(trace_.n_prompt, uint64_t{row.step} + 1);
        }
        trace_.rows.push_back(row);
    }

    uint64_t value(Column column, uint64_t most) const {
        const std::string_view text = fields_[column_[column]];
        const auto result = number(text, most);
        if (!result) {
            fail("'" + std::string(text) + "' in column '" + kColumns[column] + "' is not a number from 0 to " +
                 std::to_string(most) + kRecordAgain);
        }
        return *result;
    }

    void split(std::string_view line) {
        fields_.clear();
        for (;;) {
            const size_t comma = line.find(',');
            fields_.push_back(line.substr(0, comma));
            if (comma == std::string_view::npos) {
                return;
            }
            line.remove_prefix(comma + 1);
        }
    }

    // The rows are sorted: a cell (step, layer) is a run of n_used of them with the slots 0, 1, ...
    void check_cells() const {
        const std::vector<RecordedRow> & rows = trace_.rows;
        uint64_t next_step = 0;
        for (size_t begin = 0; begin < rows.size(); begin += trace_.n_used) {
            const RecordedRow & first = rows[begin];
            if (first.step > next_step) {
                refuse(path_, first.line, "step " + std::to_string(first.step) + ", but none of the rows is step " +
                                              std::to_string(next_step) + ": give a trace from the first token on");
            }
            next_step = uint64_t{first.step} + 1;
            check_cell(begin);
        }
    }

    void check_cell(size_t begin) const {
        const std::vector<RecordedRow> & rows = trace_.rows;
        for (size_t i = begin; i < begin + trace_.n_used; ++i) {
            const size_t expected = i - begin;
            if (i > 0 && i < rows.size() && order(rows[i]) == order(rows[i - 1])) {
                const auto [earlier, later] = std::minmax(rows[i - 1].line, rows[i].line);
                refuse(path_, later, rows[i].cell() + ", slot " + std::to_string(rows[i].slot) + " stands in line " +
                                         std::to_string(earlier) + " already: give a single trace");
            }
            if (i == rows.size() || !rows[i].same_cell(rows[begin]) || rows[i].slot != expected) {
                refuse(path_, rows[begin].line, rows[begin].cell() + " has no slot " + std::to_string(expected) +
                                                    kRecordAgain);
            }
            for (size_t j = begin; j < i; ++j) {
                if (rows[j].expert == rows[i].expert) {
                    refuse(path_, rows[i].line, rows[i].cell() + " has expert " + std::to_string(rows[i].expert) +
                                                    " twice" + kRecordAgain);
                }
            }
        }
    }

    const std::string & path_;
    const uint32_t top_k_;
    uint32_t line_ = 0;
    size_t n_fields_ = 0;  // of the header, once it was there
    std::array<size_t, n_columns> column_{};
    std::vector<std::string_view> fields_;
    uint64_t turn_ = 0;
    RecordedRoutes trace_;
};

}  // namespace

bool RecordedRoutes::counts_slots() const {
    return std::all_of(layers.begin(), layers.end(),
                       [](const auto & l) { return l.second.expert_bytes == 0 || l.second.slot_bytes; });
}

RecordedRoutes RecordedRoutes::read(const std::string & path, uint32_t top_k) {
    return TraceReader(path, top_k).read();
}

void refuse_trace(const std::string & path, const std::string & what) {
    throw Error(ExitCode::usage, "--forced-routes: " + path + ": " + what);
}

}  // namespace moe
