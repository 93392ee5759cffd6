#include "check.h"
#include "json_reader.h"
#include "json_writer.h"

using launcher::read_object;
using launcher::read_string;

static std::string member(const std::string & text, const std::string & name) {
    const auto members = read_object(text);
    return members && members->count(name) ? std::string(members->at(name)) : "absent";
}

TEST(members_of_an_object_are_found_as_they_are_written) {
    const std::string text = " {\"a\" : [1, {\"a\": 2}] ,\"b\":-1.5e+3, \"c\":\"x\\\"}\" , \"d\":{ }, \"a\\u0062\":null } \n";
    EQUAL(member(text, "a"), "[1, {\"a\": 2}]");
    EQUAL(member(text, "b"), "-1.5e+3");
    EQUAL(member(text, "c"), "\"x\\\"}\"");
    EQUAL(member(text, "d"), "{ }");
    EQUAL(member(text, "ab"), "null");
    EQUAL(member(text, "e"), "absent");
    EQUAL(member("{\"a\":1,\"a\":2}", "a"), "2");
    EQUAL(read_object("{}")->size(), size_t{0});
}

TEST(what_is_no_object_is_not_taken_for_one) {
    for (const char * text :
         {"", " ", "{", "}", "[]", "1", "\"a\"", "null", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}", "{\"a\":1}}", "{a:1}",
          "{\"a\":01}", "{\"a\":1.}", "{\"a\":.5}", "{\"a\":+1}", "{\"a\":1e}", "{\"a\":tru}", "{\"a\":[1 2]}",
          "{\"a\":\"\\x\"}", "{\"a\":\"\\u12g4\"}", "{\"a\":\"\n\"}", "{\"a\":\"\\ud800\\u0041\"}", "{\"a\":\"\xff\"}",
          "{\"a\":\"x", "{\"owner\":{\"tok"}) {
        check::that(!read_object(text), text, __FILE__, __LINE__);
    }
    THAT(!read_object("{\"a\":" + std::string(100000, '[')));
    THAT(!read_object("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}"));
    THAT(read_object("{\"a\":" + std::string(60, '[') + std::string(60, ']') + "}").has_value());
}

TEST(strings_mean_what_they_say) {
    EQUAL(read_string("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"").value(), "\"\\/\b\f\n\r\t");
    EQUAL(read_string("\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"").value(), "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    EQUAL(read_string("\"\xc3\xa9\"").value(), "\xc3\xa9");
    THAT(!read_string("1"));
    THAT(!read_string(""));
    THAT(!read_string("\"a\" \"b\""));
}

TEST(bytes_that_are_no_utf_8_survive_writing_and_reading) {
    const std::string bytes = "a\xff\x80\xc3 \x7f\"\n";
    launcher::JsonWriter json;
    json.string(bytes);
    EQUAL(read_string(json.text()).value(), bytes);
}
