// SPDX-License-Identifier: Apache-2.0
#include "tests/support/messages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <sstream>

namespace lockstep::testing {
namespace {

constexpr std::string_view kHeading = "## ";

std::string stable(const std::string& text) {
  // Ranks are threads, and what compiles an expression fills a cache of the locale without a lock.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::string out = std::regex_replace(text, std::regex(R"(\(host [^()]*, pid \d+\))"), "(...)");
  out = std::regex_replace(out, std::regex(R"(\belapsed \S+ s\b)"), "elapsed T s");
  out = std::regex_replace(out, std::regex(R"(\b127\.0\.0\.1:\d+)"), "127.0.0.1:PORT");
  out = std::regex_replace(out, std::regex(R"([^\s']*/lockstep-test-\w{6}\b)"), "FOLDER");
  out = std::regex_replace(out, std::regex(R"([ \n]+(\n|$))"), "$1");
  return out.substr(0, out.find_last_not_of('\n') + 1);
}

// By heading; an empty line ends a text, and stands in none.
std::map<std::string, std::string> texts_of(const std::string& path) {
  std::map<std::string, std::string> texts;
  std::ifstream file(path);
  std::string* text = nullptr;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kHeading)) {
      text = &texts[line.substr(kHeading.size())];
    } else if (text != nullptr && !line.empty()) {
      *text += (text->empty() ? "" : "\n") + line;
    }
  }
  return texts;
}

void write_text(const std::string& path, const std::string& heading, const std::string& said) {
  const int lock = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_GE(lock, 0) << path;
  ASSERT_EQ(::flock(lock, LOCK_EX), 0) << path;  // a test is a process, and others run beside it
  auto texts = texts_of(path);
  texts[heading] = said;
  std::ostringstream all;
  for (const auto& [name, text] : texts)
    all << (name == texts.begin()->first ? "" : "\n") << kHeading << name << '\n' << text << '\n';
  std::ofstream(path, std::ios::trunc) << all.str();
  ::close(lock);
}

}  // namespace

void expect_message(std::string_view room, std::string_view what, const std::string& said, const char* file, int line) {
  const std::string path = std::string(LOCKSTEP_SOURCE_FOLDER "/tests/messages/").append(room) + ".txt";
  const auto& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string heading = std::string(test.test_suite_name()) + "." + test.name() + ": " + std::string(what);
  const std::string text = stable(said);
  if (std::getenv("LOCKSTEP_UPDATE_MESSAGES") != nullptr) {
    write_text(path, heading, text);
    return;
  }
  const auto texts = texts_of(path);
  const auto wanted = texts.find(heading);
  if (wanted != texts.end() && wanted->second == text) return;
  ADD_FAILURE_AT(file, line) << "said\n"
                             << text << "\n\nbut in " << path << " '" << heading << "' "
                             << (wanted == texts.end() ? "isn't there" : "is\n" + wanted->second)
                             << "\n\nIf that is meant, run this test with LOCKSTEP_UPDATE_MESSAGES=1.";
}

}  // namespace lockstep::testing
