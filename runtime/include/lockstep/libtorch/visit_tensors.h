// SPDX-License-Identifier: Apache-2.0
// visit_tensors() calls a function for each tensor within the arguments or results of a module's forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <concepts>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>

namespace lockstep::libtorch {

// Calls visit(tensor) for every tensor in `value`, at any depth. `value` may be a tensor, an IValue, a tuple, a pair,
// an optional (std's or torch's) or a container (vector, array, list, map, at::TensorList, torch::OrderedDict). If
// `value` has any other type, such as a struct of the program, visit_tensors() visits no tensor. If the tensors in a
// container are const, visit_tensors() passes them to `visit` as const references.
template <typename T, typename Visit>
void visit_tensors(T& value, const Visit& visit);

namespace detail {

template <typename T>
struct IsTuple : std::false_type {};
template <typename... Ts>
struct IsTuple<std::tuple<Ts...>> : std::true_type {};
template <typename A, typename B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

template <typename T>
concept IsOptional = requires(T& value) {
  { value.has_value() } -> std::same_as<bool>;
  *value;
};

// IsItem is the concept of an item of a torch::OrderedDict, which has a key and a value.
template <typename T>
concept IsItem = requires(T& item) {
  item.key();
  item.value();
};

// IsContainer is the concept of a container. A std::filesystem::path does not count as a container, because the items
// of a path are paths again.
template <typename T>
concept IsContainer = std::ranges::range<T> && std::is_lvalue_reference_v<std::ranges::range_reference_t<T>> &&
    !std::same_as<std::ranges::range_value_t<T>, std::remove_const_t<T>>;

}  // namespace detail

template <typename T, typename Visit>
void visit_tensors(T& value, const Visit& visit) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_base_of_v<at::Tensor, Plain>) {
    visit(value);
  } else if constexpr (std::is_same_v<Plain, c10::IValue>) {
    if (value.isTensor()) visit(value.toTensor());
  } else if constexpr (detail::IsTuple<Plain>::value) {
    std::apply([&](auto&... items) { (visit_tensors(items, visit), ...); }, value);
  } else if constexpr (detail::IsOptional<T>) {
    if (value.has_value()) visit_tensors(*value, visit);
  } else if constexpr (detail::IsContainer<T>) {
    for (auto& item : value) visit_tensors(item, visit);
  } else if constexpr (detail::IsItem<T>) {
    visit_tensors(value.value(), visit);
  }
}

}  // namespace lockstep::libtorch
