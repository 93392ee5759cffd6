#include <cmath>

#include "check.h"
#include "json_writer.h"

using launcher::JsonWriter;

static std::string quoted(const std::string & text) { return JsonWriter().string(text).text(); }

TEST(json_structure_has_its_commas) {
    JsonWriter json;
    json.begin_object().field("a", 1).key("list").begin_array().integer(1).integer(2).begin_object().end_object();
    json.end_array().field("empty", std::optional<int64_t>()).field("yes", true).end_object();
    EQUAL(json.text(), R"({"a":1,"list":[1,2,{}],"empty":null,"yes":true})");
}

TEST(json_strings_are_escaped) {
    EQUAL(quoted("a\"b\\c"), R"("a\"b\\c")");
    EQUAL(quoted("line\nnext\ttab\r"), R"("line\nnext\ttab\u000d")");
    EQUAL(quoted(std::string("\0\x1f\x7f", 3)), R"("\u0000\u001f\u007f")");
    EQUAL(quoted("Füße 日本 😀"), "\"Füße 日本 😀\"");
}

TEST(json_bytes_that_are_not_utf8_become_lone_surrogates) {
    EQUAL(quoted("a\xff" "b"), "\"a\\udcff" "b\"");
    EQUAL(quoted("\xc3"), R"("\udcc3")");                    // cut off
    EQUAL(quoted("\xc0\xaf"), R"("\udcc0\udcaf")");          // overlong
    EQUAL(quoted("\xed\xa0\x80"), R"("\udced\udca0\udc80")");  // a surrogate
    EQUAL(quoted("\xf4\x90\x80\x80"), R"("\udcf4\udc90\udc80\udc80")");  // beyond U+10FFFF
    EQUAL(quoted("\xe2\x82" "A"), "\"\\udce2\\udc82" "A\"");
}

TEST(json_numbers_that_json_lacks_are_null) {
    EQUAL(JsonWriter().decimal(std::nan(""), 3).text(), "null");
    EQUAL(JsonWriter().decimal(INFINITY, 3).text(), "null");
    EQUAL(JsonWriter().decimal(1795983732.8140451, 6).text(), "1795983732.814045");
    EQUAL(JsonWriter().decimal(1e300, 1).text().size(), size_t{303});
    EQUAL(JsonWriter().integer(INT64_MIN).text(), "-9223372036854775808");
}
