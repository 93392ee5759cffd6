// Requests of a session: what is understood, what is refused and with which words, and what random bytes do.
#include "json.h"
#include "json_reader.h"
#include "session_request.h"
#include "utf8.h"

#include "check.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace moe;

namespace {

std::string error_of(const std::string & text) {
    try {
        read_json_object(text);
    } catch (const JsonError & error) {
        return error.what();
    }
    return "";
}

std::string read_string(const std::string & literal) {
    return std::get<std::string>(read_json_object("{\"k\":" + literal + "}").at("k"));
}

GenerateRequest generate(const std::string & line) {
    const Request request = parse_request(line);
    if (const auto * bad = std::get_if<BadRequest>(&request)) {
        std::fprintf(stderr, "  %s: %s\n", line.c_str(), bad->why.c_str());
    }
    return std::get<GenerateRequest>(request);
}

BadRequest bad(const std::string & line) {
    const Request request = parse_request(line);
    CHECK(std::holds_alternative<BadRequest>(request));
    return std::get<BadRequest>(request);
}

void values_are_read() {
    const JsonFields fields = read_json_object(
        " { \"s\" : \"x\" , \"t\":true,\"f\":false,\"n\":null,\"i\":-12,\"e\":1.5e+3,\r\n"
        "\t\"o\":{\"a\":[1,{},[]]},\"l\":[ ] } ");
    CHECK(fields.size() == 8);
    CHECK(std::get<std::string>(fields.at("s")) == "x");
    CHECK(std::get<bool>(fields.at("t")) && !std::get<bool>(fields.at("f")));
    CHECK(std::holds_alternative<JsonNull>(fields.at("n")));
    CHECK(std::get<JsonLiteral>(fields.at("i")).text == "-12");
    CHECK(std::get<JsonLiteral>(fields.at("e")).text == "1.5e+3");
    CHECK(std::holds_alternative<JsonNested>(fields.at("o")));
    CHECK(std::holds_alternative<JsonNested>(fields.at("l")));
    CHECK(read_json_object("{}").empty());
}

void strings_are_unescaped() {
    CHECK(read_string(R"("")").empty());
    CHECK(read_string(R"("\"\\\/\b\f\n\r\t")") == "\"\\/\b\f\n\r\t");
    CHECK(read_string(R"("\u0041\u00e9\u20AC")") == "A\xC3\xA9\xE2\x82\xAC");
    CHECK(read_string(R"("\ud83d\udC0a")") == "\xF0\x9F\x90\x8A");
    CHECK(read_string(R"("\uDBFF\uDFFF")") == "\xF4\x8F\xBF\xBF");
    CHECK(read_string(R"("a\u0000b")") == std::string("a\0b", 3));
    CHECK(read_string("\"gr\xC3\xBC\xC3\x9F \xF0\x9F\x90\x8A\"") == "gr\xC3\xBC\xC3\x9F \xF0\x9F\x90\x8A");
}

void what_is_not_json_is_refused_where_it_stops() {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"", "byte 0: a JSON object must begin"},
        {"[1]", "byte 0: a JSON object must begin"},
        {"\xEF\xBB\xBF{}", "byte 0: a JSON object must begin"},
        {"{", "byte 1: a key in quotes"},
        {"{,}", "byte 1: a key in quotes"},
        {"{a:1}", "byte 1: a key in quotes"},
        {"{'a':1}", "byte 1: a key in quotes"},
        {R"({"a"})", "byte 4: ':' is expected"},
        {R"({"a":})", "byte 5: a value"},
        {R"({"a":1,})", "byte 7: a key in quotes"},
        {R"({"a":1)", "byte 6: ',' or '}'"},
        {R"({"a":1 "b":2})", "byte 7: ',' or '}'"},
        {R"({"a":[1,]})", "byte 8: a value"},
        {R"({"a":[1})", "byte 7: ',' or ']'"},
        {R"({} {})", "byte 3: nothing may follow"},
        {std::string("{}\0", 3), "byte 2: nothing may follow"},
        {R"({"a":1,"a":2})", "byte 12: this key was given before"},
        {R"({"a":01})", "',' or '}'"},
        {R"({"a":+1})", "a value"},
        {R"({"a":.5})", "a value"},
        {R"({"a":1.})", "a digit is expected after '.'"},
        {R"({"a":1e})", "a digit is expected in the exponent"},
        {R"({"a":-})", "a value"},
        {R"({"a":NaN})", "a value"},
        {R"({"a":tru})", "a value"},
        {R"({"a":"x)", "the string does not end"},
        {"{\"a\":\"x\ny\"}", "control character"},
        {std::string("{\"a\":\"x\0\"}", 10), "control character"},
        {R"({"a":"\x"})", "unknown escape"},
        {R"({"a":"\)", "unknown escape"},
        {std::string("{\"a\":\"\\\0\"}", 10), "unknown escape"},
        {R"({"a":"\u12g4"})", "four hexadecimal digits"},
        {R"({"a":"\u12)", "four hexadecimal digits"},
        {R"({"a":"\ud83d"})", "half of a surrogate pair"},
        {R"({"a":"\ud83dx"})", "half of a surrogate pair"},
        {R"({"a":"\ud83d\n"})", "half of a surrogate pair"},
        {R"({"a":"\ud83d\u0041"})", "half of a surrogate pair"},
        {R"({"a":"\udc0a\ud83d"})", "half of a surrogate pair"},
        {"{\"a\":\"\xC3\"}", "not well-formed UTF-8"},
        {"{\"a\":\"\xED\xA0\x80\"}", "not well-formed UTF-8"},
    };
    for (const auto & [text, why] : cases) {
        const std::string message = error_of(text);
        if (message.find(why) == std::string::npos) {
            std::fprintf(stderr, "  %s\n  got: %s\n", text.c_str(), message.c_str());
            CHECK(false);
        }
    }
}

void depth_is_bounded() {
    const auto nested = [](size_t depth) {
        return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
    };
    CHECK(error_of(nested(32)).empty());
    CHECK(error_of(nested(33)).find("nested more than 32 deep") != std::string::npos);
    CHECK(error_of("{\"a\":" + std::string(1000000, '[')).find("nested") != std::string::npos);
}

void requests_are_understood() {
    const GenerateRequest full = generate(
        R"({"cmd":"generate","id":7,"prompt":"hello","n_predict":12,"think":true,"clear_kv":false})");
    CHECK(full.id == 7 && full.prompt == "hello" && full.n_predict == 12 && !full.clear_kv);
    const GenerateRequest least = generate(R"({"prompt":"","id":0,"cmd":"generate"})");
    CHECK(least.id == 0 && least.prompt.empty() && !least.n_predict && least.clear_kv);
    const GenerateRequest nulls =
        generate(R"({"cmd":"generate","id":1,"prompt":"p","n_predict":null,"clear_kv":null})");
    CHECK(!nulls.n_predict && nulls.clear_kv);
    CHECK(generate(R"({"cmd":"generate","id":9007199254740991,"prompt":"p","n_predict":2147483647})").id ==
          9007199254740991);
    CHECK(std::get<CancelRequest>(parse_request(R"({"cmd":"cancel"})")).id == std::nullopt);
    CHECK(std::get<CancelRequest>(parse_request(R"({"cmd":"cancel","id":3})")).id == 3);
    CHECK(std::holds_alternative<CloseRequest>(parse_request(R"({"cmd":"close"})")));
}

// A search for the key's name in the line gets these wrong.
void a_prompt_is_no_key() {
    CHECK(generate(R"({"cmd":"generate","id":1,"prompt":"n_predict"})").n_predict == std::nullopt);
    const GenerateRequest quoted =
        generate(R"({"prompt":"\"n_predict\":5,\"clear_kv\":false,\"cmd\":\"close\"}","cmd":"generate","id":2})");
    CHECK(quoted.prompt == R"("n_predict":5,"clear_kv":false,"cmd":"close"})");
    CHECK(!quoted.n_predict && quoted.clear_kv);
    CHECK(!generate(R"({"cmd":"generate","id":1,"prompt":"p","extra":{"n_predict":5}})").n_predict);
    CHECK(generate(R"({"c\u006dd":"generate","\u0069d":4,"prompt":"p"})").id == 4);
}

void refusals_name_the_field_and_keep_the_id() {
    struct Case {
        std::string line;
        uint64_t id;
        std::string why;
    };
    const std::vector<Case> cases = {
        {"nonsense", 0, "invalid JSON at byte 0"},
        {R"({"id":5})", 5, "cmd is missing"},
        {R"({"id":5,"cmd":7})", 5, "cmd must be a string"},
        {R"({"id":5,"cmd":"stop"})", 5, "unknown cmd 'stop'"},
        {R"({"cmd":"generate","prompt":"p"})", 0, "needs an id"},
        {R"({"cmd":"generate","prompt":"p","id":"5"})", 0, "id must be a whole number from 0 to 9007199254740991"},
        {R"({"cmd":"generate","prompt":"p","id":-1})", 0, "id must be"},
        {R"({"cmd":"generate","prompt":"p","id":1.0})", 0, "id must be"},
        {R"({"cmd":"generate","prompt":"p","id":9007199254740992})", 0, "id must be"},
        {R"({"cmd":"generate","prompt":"p","id":99999999999999999999})", 0, "id must be"},
        {R"({"cmd":"generate","id":5})", 5, "needs a prompt"},
        {R"({"cmd":"generate","id":5,"prompt":["p"]})", 5, "prompt must be a string"},
        {R"({"cmd":"generate","id":5,"prompt":"p","n_predict":0})", 5,
         "n_predict must be a whole number from 1 to 2147483647"},
        {R"({"cmd":"generate","id":5,"prompt":"p","n_predict":2147483648})", 5, "n_predict must be"},
        {R"({"cmd":"generate","id":5,"prompt":"p","n_predict":1e2})", 5, "n_predict must be"},
        {R"({"cmd":"generate","id":5,"prompt":"p","n_predict":true})", 5, "n_predict must be"},
        {R"({"cmd":"generate","id":5,"prompt":"p","clear_kv":1})", 5, "clear_kv must be true or false"},
        {R"({"cmd":"cancel","id":"all"})", 0, "id must be"},
    };
    for (const Case & c : cases) {
        const BadRequest refused = bad(c.line);
        if (refused.id != c.id || refused.why.find(c.why) == std::string::npos) {
            std::fprintf(stderr, "  %s\n  got: %llu %s\n", c.line.c_str(), static_cast<unsigned long long>(refused.id),
                         refused.why.c_str());
            CHECK(false);
        }
    }
}

std::string random_bytes(std::mt19937 & random, size_t length) {
    std::string text(length, '\0');
    for (char & c : text) {
        c = static_cast<char>(random() % 256);
    }
    return text;
}

// What the engine's own writer makes of any text, its reader takes back.
void written_strings_read_back() {
    std::mt19937 random(1130);
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        for (size_t n = random() % 20; n > 0; --n) {
            const char32_t point = random() % 4 == 0 ? random() % 0x110000 : random() % 0x100;
            if (point < 0xD800 || point > 0xDFFF) {
                append_utf8(text, point);
            }
        }
        CHECK(read_string(json_string(text)) == text);
        read_string(json_string(random_bytes(random, random() % 30)));  // must be accepted
    }
}

// Neither crashes nor, of what is no object, makes a request. Under sanitizers this reads no byte it must not.
void random_lines_are_survived() {
    std::mt19937 random(20261130);
    const std::string valid =
        R"({"cmd":"generate","id":12,"prompt":"a \"q\" \ud83d\udc0a \n","n_predict":5,)"
        R"("x":[{"y":-1.5e3}],"clear_kv":true})";
    size_t refused = 0;
    size_t taken = 0;
    for (int round = 0; round < 40000; ++round) {
        std::string line = valid;
        if (round % 4 == 0) {
            line = random_bytes(random, random() % 60);
        } else {
            for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
                const size_t at = random() % (line.size() + 1);
                const size_t length = random() % 4;
                switch (random() % 3) {
                    case 0: line.erase(at, length); break;
                    case 1: line.insert(at, random_bytes(random, length)); break;
                    default: line.insert(at, valid.substr(random() % valid.size(), 1 + length)); break;
                }
            }
        }
        const Request request = parse_request(line);
        const auto * wrong = std::get_if<BadRequest>(&request);
        CHECK(wrong == nullptr || !wrong->why.empty());
        ++(wrong != nullptr ? refused : taken);
    }
    std::fprintf(stderr, "  %zu refused, %zu taken\n", refused, taken);
    CHECK(refused > 1000 && taken > 1000);

    for (size_t length = 0; length < valid.size(); ++length) {
        bad(valid.substr(0, length));
    }
}

}  // namespace

int main() {
    check::run("values are read", values_are_read);
    check::run("strings are unescaped", strings_are_unescaped);
    check::run("what is not JSON is refused where it stops", what_is_not_json_is_refused_where_it_stops);
    check::run("depth is bounded", depth_is_bounded);
    check::run("requests are understood", requests_are_understood);
    check::run("a prompt is no key", a_prompt_is_no_key);
    check::run("refusals name the field and keep the id", refusals_name_the_field_and_keep_the_id);
    check::run("written strings read back", written_strings_read_back);
    check::run("random lines are survived", random_lines_are_survived);
    return check::result();
}
