#include "session_request.h"

#include "json_reader.h"

#include <cerrno>
#include <cstdlib>
#include <limits>
#include <stdexcept>

namespace moe {

namespace {

// Beyond this, readers of JSON begin to disagree about integers.
constexpr int64_t max_id = (int64_t{1} << 53) - 1;

// The fields of a request by name and kind. A field that is null counts as absent. Throws runtime_error.
class Fields {
public:
    explicit Fields(JsonFields fields) : fields_(std::move(fields)) {}

    std::optional<std::string> text(const char * key) const { return value<std::string>(key, "a string"); }
    std::optional<bool> boolean(const char * key) const { return value<bool>(key, "true or false"); }

    std::optional<int64_t> whole_number(const char * key, int64_t low, int64_t high) const {
        const std::string kind = "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
        const std::optional<JsonLiteral> literal = value<JsonLiteral>(key, kind);
        if (!literal) {
            return std::nullopt;
        }
        errno = 0;
        char * end = nullptr;
        const long long number = std::strtoll(literal->text.c_str(), &end, 10);
        if (*end != '\0' || errno == ERANGE || number < low || number > high) {
            wrong(key, kind);
        }
        return number;
    }

private:
    [[noreturn]] static void wrong(const char * key, const std::string & kind) {
        throw std::runtime_error(std::string(key) + " must be " + kind);
    }

    template <class T>
    std::optional<T> value(const char * key, const std::string & kind) const {
        const auto it = fields_.find(key);
        if (it == fields_.end() || std::holds_alternative<JsonNull>(it->second)) {
            return std::nullopt;
        }
        if (!std::holds_alternative<T>(it->second)) {
            wrong(key, kind);
        }
        return std::get<T>(it->second);
    }

    const JsonFields fields_;
};

Request request_of(const Fields & fields, const std::optional<uint64_t> & id) {
    const std::optional<std::string> cmd = fields.text("cmd");
    if (!cmd) {
        throw std::runtime_error("cmd is missing: generate, cancel or close");
    }
    if (*cmd == "cancel") {
        return CancelRequest{id};
    }
    if (*cmd == "close") {
        return CloseRequest{};
    }
    if (*cmd != "generate") {
        throw std::runtime_error("unknown cmd '" + *cmd + "': there are generate, cancel and close");
    }
    if (!id) {
        throw std::runtime_error("generate needs an id");
    }
    std::optional<std::string> prompt = fields.text("prompt");
    if (!prompt) {
        throw std::runtime_error("generate needs a prompt");
    }
    GenerateRequest request;
    request.id = *id;
    request.prompt = std::move(*prompt);
    request.n_predict = fields.whole_number("n_predict", 1, std::numeric_limits<int32_t>::max());
    request.clear_kv = fields.boolean("clear_kv").value_or(true);
    return request;
}

}  // namespace

Request parse_request(const std::string & line) {
    std::optional<uint64_t> id;
    try {
        const Fields fields(read_json_object(line));
        id = fields.whole_number("id", 0, max_id);
        return request_of(fields, id);
    } catch (const std::runtime_error & error) {
        return BadRequest{id.value_or(0), error.what()};
    }
}

}  // namespace moe
