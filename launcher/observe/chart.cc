// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::launcher {
namespace {

constexpr double kWidth = 960;
constexpr double kLabels = 150;  // room on the left
constexpr double kRight = 10;

std::string open_svg(std::string_view kind, double height, std::size_t points, std::string_view title) {
  return fmt::format(R"(<svg class="{}" viewBox="0 0 {} {:.0f}" role="img" data-points="{}"><title>{}</title>)"
                     "\n",
                     kind, kWidth, height, points, escaped(title));
}

std::string axis_label(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)"
                     "\n",
                     x, y, anchor, escaped(text));
}

// At most kMostPoints means of neighbours.
std::vector<double> thinned(const std::vector<double>& values) {
  const std::size_t group = (values.size() + kMostPoints - 1) / kMostPoints;
  if (group <= 1) return values;
  std::vector<double> means;
  for (std::size_t i = 0; i < values.size(); i += group) {
    const std::size_t end = std::min(i + group, values.size());
    double sum = 0;
    for (std::size_t j = i; j < end; ++j) sum += values[j];
    means.push_back(sum / static_cast<double>(end - i));
  }
  return means;
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

std::string line_chart(const std::vector<double>& all, std::string_view title) {
  constexpr double kHeight = 200;
  const std::vector<double> values = thinned(all);
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite), [](double v) { return std::isfinite(v); });
  std::string svg = open_svg("line", kHeight, finite.size(), title);
  if (!finite.empty()) {
    const auto [low, high] = std::minmax_element(finite.begin(), finite.end());
    const double range = *high > *low ? *high - *low : 1;
    const double step = values.size() > 1 ? (kWidth - kLabels - kRight) / static_cast<double>(values.size() - 1) : 0;
    std::string points;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i])) continue;
      const double y = kHeight - 20 - (values[i] - *low) / range * (kHeight - 40);
      points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", kLabels + static_cast<double>(i) * step, y);
    }
    svg += axis_label(kLabels - 8, 24, "end", fmt::format("{:.4g}", *high));
    svg += axis_label(kLabels - 8, kHeight - 16, "end", fmt::format("{:.4g}", *low));
    svg += fmt::format(R"(<polyline points="{}"/>)"
                       "\n",
                       points);
  }
  return svg + "</svg>\n";
}

std::string stacked_bars(const std::vector<Bar>& bars, std::string_view title) {
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
  std::string svg = open_svg("bars", kBar * static_cast<double>(bars.size()) + 4, points, title);
  for (std::size_t b = 0; b < bars.size(); ++b) {
    const double y = kBar * static_cast<double>(b) + 2;
    svg += axis_label(kLabels - 8, y + 14, "end", bars[b].label);
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
  return svg + "</svg>\n";
}

std::string heat_map(const std::vector<HeatRow>& rows, std::string_view title) {
  const double cell = rows.size() > 32 ? 10 : 20;
  std::size_t columns = 0;
  std::size_t points = 0;
  for (const HeatRow& row : rows) {
    columns = std::max(columns, row.values.size());
    points += row.values.size();
  }
  const double width = columns > 0 ? (kWidth - kLabels - kRight) / static_cast<double>(columns) : 0;
  std::string svg = open_svg("heat", cell * static_cast<double>(rows.size()) + 4, points, title);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double y = cell * static_cast<double>(r) + 2;
    svg += axis_label(kLabels - 8, y + cell / 2 + 4, "end", rows[r].label);
    for (std::size_t i = 0; i < rows[r].values.size(); ++i) {
      svg += fmt::format(
          R"(<rect class="cell" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill-opacity="{:.3f}"><title>{}</title></rect>)"
          "\n",
          kLabels + width * static_cast<double>(i), y, width, cell - 1, std::clamp(rows[r].values[i], 0.0, 1.0),
          i < rows[r].titles.size() ? escaped(rows[r].titles[i]) : "");
    }
  }
  return svg + "</svg>\n";
}

}  // namespace lockstep::launcher
