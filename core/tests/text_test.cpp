#include "core/text.h"

#include <doctest/doctest.h>

using namespace splash;

TEST_CASE("only UTF-8 goes out") {
  CHECK(to_utf8("plain, é, 漢, 🙂") == "plain, é, 漢, 🙂");
  CHECK(to_utf8("\xc0\x80") == "\uFFFD\uFFFD");     // overlong
  CHECK(to_utf8("\xf4\x90\x80\x80").size() == 12);  // above U+10FFFF
  CHECK(to_utf8("\xe2\x82") == "\uFFFD\uFFFD");     // cut off
}

TEST_CASE("no byte of a text is left that a terminal obeys") {
  CHECK(printable("a\x1b]0;title\x07"
                  "b\x7f\r\n\tc") == "a\u241b]0;title\u2407b\u2421\u240d\n\tc");
  CHECK(one_line("a\nb\tc") == "a\u240ab\u2409c");
  CHECK(printable("\xc2\x9b"
                  "31m \x9b"
                  "31m") == "\uFFFD31m \uFFFD31m");  // CSI as a character, as a byte
  CHECK(printable("\u202Egnp.exe\u2066 \u200F") == "\uFFFDgnp.exe\uFFFD \uFFFD");
  CHECK(printable("é 漢 🙂 τ ≤ –") == "é 漢 🙂 τ ≤ –");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string shown = one_line(std::string("x") + static_cast<char>(byte));
    CAPTURE(byte);
    for (const char c : shown) CHECK(static_cast<unsigned char>(c) >= 0x20);
    CHECK(shown.find('\x7f') == std::string::npos);
  }
}

TEST_CASE("no cell of text is a formula") {
  for (const char* formula : {"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"}) {
    CAPTURE(formula);
    CHECK(table_cell(formula)[0] == '\'');
  }
  CHECK(table_cell("a=b") == "a=b");
  CHECK(table_cell("") == "");
  CHECK(table_cell("\t=1") == "'\u2409=1");
}

TEST_CASE("JSON keeps its meaning and loses what terminals obey") {
  CHECK(escaped_json("{\"a\": \"\u009b31m\x7f\u202e é\"}") == "{\"a\": \"\\u009b31m\\u007f\\u202e é\"}");
}
