// SPDX-License-Identifier: Apache-2.0
// `lockstep top` and the progress bar as a terminal shows them: tmux's, of 80 and of 200 columns, with colours and
// without.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/e2e/job.h"
#include "tests/e2e/training_job.h"
#include "tests/support/error_of.h"

namespace lockstep::e2e::terminal_test {
namespace {

using lockstep::testing::expect_text;
using testing::run;
using testing::wait_until;

// A terminal of so many columns in which `command` runs. The tmux server behind it is this object's own, and ends with
// it.
class Tmux {
 public:
  Tmux(const std::filesystem::path& folder, int columns, bool has_colours, const Words& command)
      : socket_(folder / ("tmux" + std::to_string(++servers_))) {
    Words words = {"-f", "/dev/null", "new-session", "-d", "-x", std::to_string(columns), "-y", "24", "env"};
    if (has_colours) words.push_back("-u");
    words.push_back(has_colours ? "NO_COLOR" : "NO_COLOR=1");
    words.insert(words.end(), command.begin(), command.end());
    const Result started = tmux(words);
    EXPECT_EQ(started.exit_code, 0) << started.err;
  }
  ~Tmux() { tmux({"kill-server"}); }
  Tmux(const Tmux&) = delete;
  Tmux& operator=(const Tmux&) = delete;

  // What is on the screen, with escapes for its colours.
  std::string screen() const { return tmux({"capture-pane", "-p", "-e"}).out; }
  std::string plain_screen() const { return tmux({"capture-pane", "-p"}).out; }
  void type(const std::string& key) const { tmux({"send-keys", key}); }
  bool runs() const { return tmux({"has-session"}).exit_code == 0; }

 private:
  Result tmux(const Words& words) const { return run(joined({"tmux", "-S", socket_.string()}, words)); }
  // The one before may still be about to end.
  static inline int servers_ = 0;
  std::filesystem::path socket_;
};

class Terminal : public TrainingJob, public ::testing::WithParamInterface<std::tuple<int, bool>> {
 protected:
  void SetUp() override {
    if (!testing::has_program("tmux")) GTEST_SKIP() << "tmux is not installed: apt-get install tmux";
  }
  static int columns() { return std::get<0>(GetParam()); }
  static bool has_colours() { return std::get<1>(GetParam()); }
};

// Of a line, what is to be seen: letters, not bytes.
std::size_t width_of(const std::string& line) {
  std::size_t letters = 0;
  for (const char byte : line) letters += (static_cast<unsigned char>(byte) & 0xc0) != 0x80 ? 1 : 0;
  return letters;
}

TEST_P(Terminal, ShowsTopWithALineForEachRank) {
  Process launcher(
      {.command = job(2, program("job", "", 1'000'000)), .environment = {{"LOCKSTEP_TEST_SLOW_DATA", "20"}}});
  ASSERT_TRUE(launcher.await_output(" % of every step: data\n"));
  const Tmux tmux(folder_, columns(), has_colours(), {LOCKSTEP_PROGRAM, "top", "--interval", "0.2", id_of(launcher)});
  std::vector<std::string> lines;
  ASSERT_TRUE(wait_until([&] {
    lines = lines_of(tmux.plain_screen());
    return lines.size() >= 8 && lines[5].starts_with("RANK ") && contains(lines[3], "costs");
  })) << tmux.plain_screen();
  for (const auto& line : lines) EXPECT_LE(width_of(line), static_cast<std::size_t>(columns()));
  EXPECT_TRUE(contains(lines[5], "MEMORY  PID")) << lines[5];
  EXPECT_TRUE(lines[7].starts_with("1 *")) << lines[7];
  EXPECT_EQ(contains(lines[5], "LAST COLLECTIVE"), columns() == 200);
  ASSERT_TRUE(wait_until([&] { return contains(tmux.screen(), "38;5;39m") == has_colours(); })) << tmux.screen();
  if (!has_colours()) {
    EXPECT_FALSE(contains(tmux.screen(), "\x1b[")) << tmux.screen();
  }
  EXPECT_TRUE(contains(tmux.plain_screen(), "q: quit  ?: help"));
  tmux.type("?");
  ASSERT_TRUE(wait_until([&] { return contains(tmux.plain_screen(), "*: the others wait for this rank"); }));
  tmux.type("q");
  ASSERT_TRUE(wait_until([&] { return !tmux.runs(); })) << tmux.plain_screen();
  launcher.send(SIGTERM);
  launcher.wait();
}

// A background job that sets its terminal, or reads from it, is stopped.
TEST_F(TrainingJob, TopEndsInTheBackgroundToo) {
  if (!testing::has_program("tmux")) GTEST_SKIP() << "tmux is not installed: apt-get install tmux";
  Process launcher({.command = job(1, program("job", "", 1'000'000))});
  ASSERT_TRUE(wait_until([&] { return !id_of(launcher).empty(); }));
  const Tmux tmux(folder_, 80, false, {"bash", "--norc", "-i"});
  const auto enter = [&](const std::string& line) {
    tmux.type(line);
    tmux.type("Enter");
  };
  const auto await_text = [&](const std::string& text) {
    return wait_until([&] { return contains(tmux.plain_screen(), text); });
  };
  const std::filesystem::path pid = std::filesystem::path(folder_) / "pid";
  enter("sh -c 'echo $$ > " + pid.native() + "; exec " + LOCKSTEP_PROGRAM + " top --interval 0.2 " + id_of(launcher) +
        "'");
  ASSERT_TRUE(await_text("\nRANK ")) << tmux.plain_screen();
  pid_t top = 0;
  std::ifstream(pid) >> top;
  ASSERT_GT(top, 0);
  kill(top, SIGSTOP);
  ASSERT_TRUE(await_text("Stopped ")) << tmux.plain_screen();
  enter("bg");
  enter("kill %1; wait %1; echo code $?");
  EXPECT_TRUE(await_text("code 0")) << tmux.plain_screen();
  launcher.send(SIGTERM);
  launcher.wait();
}

// By the launcher, and of a rank that has none.
TEST_P(Terminal, ShowsTheBarInOneLine) {
  const Words program = {BAR_PROGRAM, "--steps", "100000", "--eval-every", "100000"};
  for (const Words& command : {joined({LOCKSTEP_PROGRAM, "run", "-n", "2"}, program), program}) {
    const Tmux tmux(folder_, columns(), has_colours(), command);
    std::string bar;
    const auto bars = [&] {
      Words found;
      for (const auto& line : lines_of(tmux.plain_screen())) {
        if (contains(line, "/100000")) found.push_back(line);
      }
      return found;
    };
    ASSERT_TRUE(wait_until([&] {
      const Words found = bars();
      if (!found.empty()) bar = found.front();
      return contains(bar, " left  loss ");
    })) << tmux.plain_screen();
    EXPECT_LT(width_of(bar), static_cast<std::size_t>(columns()));
    // It is drawn over what it was, and leaves nothing behind.
    ASSERT_TRUE(wait_until([&] {
      const Words found = bars();
      return found.size() == 1 && found.front() != bar;
    })) << tmux.plain_screen();
    tmux.type("C-c");
    EXPECT_TRUE(wait_until([&] { return !tmux.runs(); })) << tmux.plain_screen();
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Terminal, ::testing::Combine(::testing::Values(80, 200), ::testing::Bool()),
                         [](const auto& test) {
                           return std::to_string(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) ? "_columns_with_colours" : "_columns_without_colours");
                         });

}  // namespace
}  // namespace lockstep::e2e::terminal_test
