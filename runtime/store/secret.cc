// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/base/hmac.h"
#include "runtime/base/random_bytes.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::store {
namespace {

constexpr const char* kVariable = "LOCKSTEP_STORE_SECRET";
constexpr const char* kFileVariable = "LOCKSTEP_STORE_SECRET_FILE";

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void wipe_text(std::string& text) { wipe(std::as_writable_bytes(std::span(text))); }

// Returns whether the file is on a file system that is mounted read-only, such as a secret volume of Kubernetes. On a
// read-only mount, the mount decides the file's mode, and the user can't change the mode.
bool is_mounted_read_only(int fd) {
  struct statvfs system {};
  return ::fstatvfs(fd, &system) == 0 && (system.f_flag & ST_RDONLY) != 0;
}

std::string read_secret_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument(fmt::format("{}: {}", kFileVariable, why));
  };
  // O_NONBLOCK keeps open() from blocking this process if `path` is a pipe.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd)
    throw refuse(fmt::format("the secret file {} can't be opened: {}; give a file that this process can read", path,
                             errno_text(errno)));
  // Check the open descriptor instead of the path, so that nobody can replace the file between the check and the read.
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw SystemError(fmt::format("fstat of {}", path), errno);
  if (!S_ISREG(status.st_mode))
    throw refuse(
        fmt::format("{} is not a regular file; write the secret's 64 hex digits to a file of mode 0600", path));
  if ((status.st_mode & 077) != 0 && !is_mounted_read_only(fd.get())) {
    throw refuse(
        fmt::format("other users may read or write the secret file {} (mode {:04o}): run chmod 600 on the file, and if "
                    "anybody else could have read it, draw a new secret",
                    path, status.st_mode & 07777));
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    throw refuse(
        fmt::format("the secret file {} belongs to user {}, but this process runs as user {}: give a file that belongs "
                    "to the user of this process or to root",
                    path, status.st_uid, ::geteuid()));
  }
  std::string text(2 * Secret::kBytes + 2, '\0');  // room for a line's end, so that a longer text is noticed
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(fd.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw refuse(fmt::format("the secret file {} can't be read: {}; give a file that this process can read", path,
                               errno_text(errno)));
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  while (size > 0 && (text[size - 1] == '\n' || text[size - 1] == '\r')) --size;
  wipe(std::as_writable_bytes(std::span(text)).subspan(size));
  text.resize(size);
  return text;
}

Secret parse_named(std::string_view name, std::string& text) {
  try {
    const Secret secret = Secret::parse(text);
    wipe_text(text);
    return secret;
  } catch (const InvalidArgument& error) {
    wipe_text(text);
    throw InvalidArgument(fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace

Secret Secret::random() {
  Secret secret;
  fill_random(secret.bytes_);
  return secret;
}

Secret Secret::parse(std::string_view hex) {
  if (hex.size() != 2 * kBytes) {
    throw InvalidArgument(
        fmt::format("a store's secret has {} hex digits, but the given secret has {} characters; run 'openssl rand "
                    "-hex {}' to draw a secret",
                    2 * kBytes, hex.size(), kBytes));
  }
  Secret secret;
  for (std::size_t i = 0; i < hex.size(); ++i) {
    const int digit = hex_digit(hex[i]);
    if (digit < 0) {
      throw InvalidArgument(
          fmt::format("a store's secret is {} hex digits, but character {} of the given secret is not a hex digit; run "
                      "'openssl rand -hex {}' to draw a secret",
                      2 * kBytes, i + 1, kBytes));
    }
    secret.bytes_[i / 2] = secret.bytes_[i / 2] << 4 | static_cast<std::byte>(digit);
  }
  return secret;
}

std::optional<Secret> Secret::of_environment(const Environment& environment) {
  if (auto text = environment.get(kVariable)) return parse_named(kVariable, *text);
  const auto path = environment.get(kFileVariable);
  if (!path) return std::nullopt;
  std::string text = read_secret_file(*path);
  return parse_named(fmt::format("{}={}", kFileVariable, *path), text);
}

Secret::~Secret() { wipe(bytes_); }

std::string Secret::hex() const { return hex_digits(bytes_); }

bool Secret::operator==(const Secret& other) const { return equal_in_constant_time(bytes_, other.bytes_); }

}  // namespace lockstep::store
