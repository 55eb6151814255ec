// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/printable.h"

namespace lockstep::launcher {
namespace {

constexpr double kWidth = 760;
constexpr double kNumbers = 84;  // room on the left for an axis' numbers
constexpr double kLabels = 170;  // room on the left for ranks
constexpr std::size_t kMostLabel = 21;
constexpr double kRight = 20;
constexpr double kAxis = 44;          // room below for an axis
constexpr double kMostValue = 1e300;  // the largest magnitude of a value; larger ones are drawn at the chart's edge

std::string open_svg(std::string_view kind, double height, std::size_t points, std::string_view title) {
  return fmt::format(
      R"(<div class="wide"><svg class="{}" viewBox="0 0 {} {:.0f}" role="img" data-points="{}"><title>{}</title>)"
      "\n",
      kind, kWidth, height, points, escaped(title));
}
constexpr std::string_view kCloseSvg = "</svg></div>\n";

std::string text_at(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)"
                     "\n",
                     x, y, anchor, escaped(text));
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void take(double value) {
    if (!std::isfinite(value)) return;
    value = std::clamp(value, -kMostValue, kMostValue);
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Returns the position of `value` in the range, from 0 to 1.
  double part(double value) const { return high > low ? std::clamp((value - low) / (high - low), 0.0, 1.0) : 0; }
};

// Returns about `count` round numbers, at least `least` apart, of which the first and the last enclose the range.
std::vector<double> ticks(Range range, double count, double least = 0) {
  const double magnitude = std::max(std::abs(range.low), std::abs(range.high));
  if (range.high - range.low < 1e-12 * magnitude) {  // else number + 1 might equal number
    range = {range.low - 1e-9 * magnitude, range.high + 1e-9 * magnitude};
  }
  const double wanted = std::max((range.high - range.low) / count, std::max(least, 1e-300));
  const double power = std::pow(10, std::floor(std::log10(wanted) + 1e-9));
  const double step = power * (wanted <= power * 1.001   ? 1
                               : wanted <= power * 2.001 ? 2
                               : wanted <= power * 5     ? 5
                                                         : 10);
  double number = std::floor(range.low / step + 1e-6);
  std::vector<double> numbers{number * step};
  while (numbers.back() < range.high - 1e-6 * step && numbers.size() < 100) numbers.push_back(++number * step);
  return numbers;
}

// Draws numbers below `y`, from `left` on, and their unit.
std::string x_axis(const Range& range, double left, double y, double least, std::string_view unit) {
  std::string svg = text_at(kWidth - kRight, y + 40, "end", unit);
  for (const double number : ticks(range, 6, least)) {
    if (number < range.low || number > range.high) continue;
    const double x = left + range.part(number) * (kWidth - left - kRight);
    svg += fmt::format(R"(<path class="grid" d="M{:.1f},{:.1f} v4"/>)", x, y) +
           text_at(x, y + 20, "middle", fmt::format("{:.6g}", number));
  }
  return svg;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string line_chart(const std::vector<Curve>& curves, const Axis& axis, std::string_view title) {
  constexpr double kTop = 34;
  constexpr double kBottom = 196;
  constexpr std::size_t kMostDots = 60;
  Range steps;
  Range values;
  std::size_t shown = 0;
  if (axis.from_zero) values.take(0);
  for (const Curve& curve : curves) {
    for (const auto& [step, value] : curve.points) {
      steps.take(step);
      values.take(value);
      shown += std::isfinite(value) ? 1 : 0;
    }
  }
  std::string svg = open_svg("line", kBottom + kAxis, shown, title);
  if (steps.high < steps.low) return svg + std::string(kCloseSvg);
  if (shown == 0) values.take(0);
  if (values.high <= values.low) {  // a constant: drawn in the middle, or at the bottom if it is 0
    const double room = values.low == 0 ? 1 : std::abs(values.low) / 10;
    values = {axis.from_zero ? values.low : values.low - room, values.high + room};
  }
  const std::vector<double> numbers = ticks(values, 4);
  values = {numbers.front(), numbers.back()};
  const auto x_of = [&](double step) { return kNumbers + steps.part(step) * (kWidth - kNumbers - kRight); };
  const auto y_of = [&](double value) { return kBottom - values.part(value) * (kBottom - kTop); };
  svg += text_at(0, 16, "start", axis.unit) + x_axis(steps, kNumbers, kBottom, 1, "step");
  for (const double number : numbers) {
    svg += fmt::format(R"(<path class="grid" d="M{},{:.1f} H{}"/>)", kNumbers, y_of(number), kWidth - kRight) +
           text_at(kNumbers - 8, y_of(number) + 4, "end", fmt::format("{:.6g}", number));
  }
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::string points;
    for (const auto& [step, value] : curves[i].points) {
      const std::string tip =
          fmt::format("<title>{} {:.6g}, step {:.0f}</title>", escaped(curves[i].name), value, step);
      if (!std::isfinite(value)) {
        svg += fmt::format("<path class=\"bad\" d=\"M{:.1f},{} V{}\">{}</path>\n", x_of(step), kTop, kBottom, tip);
        continue;
      }
      points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x_of(step), y_of(value));
      if (curves[i].points.size() > kMostDots) continue;
      svg += fmt::format("<circle class=\"l{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\">{}</circle>\n", i, x_of(step),
                         y_of(value), tip);
    }
    svg += fmt::format("<polyline class=\"l{}\" points=\"{}\"/>\n", i, points);
  }
  return svg.append(kCloseSvg);
}

std::string stacked_bars(const std::vector<Bar>& bars, std::string_view unit, std::string_view title) {
  constexpr double kBar = 22;
  double longest = 0;
  std::size_t points = 0;
  for (const Bar& bar : bars) {
    double sum = 0;
    for (const double part : bar.parts) sum += part;
    longest = std::max(longest, sum);
    points += bar.parts.size();
  }
  const double scale = longest > 0 ? (kWidth - kLabels - kRight) / longest : 0;
  const double height = kBar * static_cast<double>(bars.size()) + 4;
  std::string svg = open_svg("bars", height + kAxis, points, title) + x_axis({0, longest}, kLabels, height, 0, unit);
  for (std::size_t b = 0; b < bars.size(); ++b) {
    const double y = kBar * static_cast<double>(b) + 2;
    svg += text_at(kLabels - 8, y + 14, "end", printable(bars[b].label, kMostLabel));
    double x = kLabels;
    for (std::size_t i = 0; i < bars[b].parts.size(); ++i) {
      const double width = bars[b].parts[i] * scale;
      svg += fmt::format(
          R"(<rect class="p{}" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"><title>{}</title></rect>)"
          "\n",
          i, x, y, width, kBar - 4, i < bars[b].titles.size() ? escaped(bars[b].titles[i]) : "");
      x += width;
    }
  }
  return svg.append(kCloseSvg);
}

std::string heat_map(const std::vector<HeatRow>& rows, double first, double last, std::string_view title) {
  const double cell = rows.size() > 32 ? 10 : 20;
  std::size_t columns = 0;
  std::size_t points = 0;
  for (const HeatRow& row : rows) {
    columns = std::max(columns, row.values.size());
    points += row.values.size();
  }
  const double width = columns > 0 ? (kWidth - kLabels - kRight) / static_cast<double>(columns) : 0;
  const double height = cell * static_cast<double>(rows.size()) + 4;
  std::string svg = open_svg("heat", height + kAxis, points, title) + x_axis({first, last}, kLabels, height, 1, "step");
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double y = cell * static_cast<double>(r) + 2;
    svg += text_at(kLabels - 8, y + cell / 2 + 4, "end", printable(rows[r].label, kMostLabel));
    for (std::size_t i = 0; i < rows[r].values.size(); ++i) {
      svg += fmt::format(
          R"(<rect class="cell" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill-opacity="{:.3f}"><title>{}</title></rect>)"
          "\n",
          kLabels + width * static_cast<double>(i), y, width, cell - 1, std::clamp(rows[r].values[i], 0.0, 1.0),
          i < rows[r].titles.size() ? escaped(rows[r].titles[i]) : "");
    }
  }
  return svg.append(kCloseSvg);
}

}  // namespace lockstep::launcher
