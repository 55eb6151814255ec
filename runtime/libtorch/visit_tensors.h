// The tensors within what a module's forward takes and returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::torch {

// visit(tensor) for every tensor in `value`: itself, or within tuples, pairs, vectors and optionals, at any depth.
// Other types hold none.
template <typename T, typename Visit>
void visit_tensors(T& value, const Visit& visit);

namespace detail {

template <typename T>
struct IsList : std::false_type {};
template <typename T, typename A>
struct IsList<std::vector<T, A>> : std::true_type {};
template <typename T>
struct IsTuple : std::false_type {};
template <typename... Ts>
struct IsTuple<std::tuple<Ts...>> : std::true_type {};
template <typename A, typename B>
struct IsTuple<std::pair<A, B>> : std::true_type {};
template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

}  // namespace detail

template <typename T, typename Visit>
void visit_tensors(T& value, const Visit& visit) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_base_of_v<at::Tensor, Plain>) {
    visit(value);
  } else if constexpr (detail::IsList<Plain>::value) {
    for (auto& item : value) visit_tensors(item, visit);
  } else if constexpr (detail::IsTuple<Plain>::value) {
    std::apply([&](auto&... items) { (visit_tensors(items, visit), ...); }, value);
  } else if constexpr (detail::IsOptional<Plain>::value) {
    if (value) visit_tensors(*value, visit);
  }
}

}  // namespace lockstep::torch
