// Adapters that come and go in a folder, with a real engine.
#include "worker/adapter_folder.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "engine/engine_factory.h"
#include "tests/support/await_that.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"
#include "worker/adapter_table.h"

namespace baton::worker::adapter_folder_test {
namespace {

namespace fs = std::filesystem;

using test::AwaitThat;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Outbox final : public ControlOutbox {
 public:
  void Send(SessionId session, v1::WorkerMessage message) override {
    sent.emplace_back(session, std::move(message));
  }
  void SendToAll(const v1::WorkerMessage& message) override {
    sent.emplace_back(0, message);
  }
  bool Backlogged(SessionId session) override { return false; }

  std::vector<std::pair<SessionId, v1::WorkerMessage>> sent;
};

class AdapterFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = scratch_.path() + "/model";
    ASSERT_TRUE(test::WriteTinyModel(model_).ok());
    fs::create_directory(folder_);
  }

  void MakeEngine(const std::vector<engine::AdapterSource>& adapters = {}) {
    engine::EngineOptions options;
    options.model_dir = model_;
    options.num_threads = 1;
    options.kv_memory_bytes = 1 << 20;
    options.adapters = adapters;
    auto engine = engine::CreateEngine(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // A whole one, outside of the folder.
  std::string Write(const std::string& name, uint32_t seed, int rank = 4) {
    const std::string dir = absl::StrCat(scratch_.path(), "/", name, "-", seed);
    const absl::Status status =
        test::WriteTinyAdapter(dir, model_, {.seed = seed, .rank = rank});
    CHECK(status.ok()) << status;
    return dir;
  }
  // At once, as `mv` does.
  void Put(const std::string& name, uint32_t seed, int rank = 4) {
    fs::rename(Write(name, seed, rank), Path(name));
  }
  void Remove(const std::string& name) {
    fs::rename(Path(name), scratch_.path() + "/removed");
    fs::remove_all(scratch_.path() + "/removed");
  }
  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }

  void Open() {
    if (engine_ == nullptr) MakeEngine();
    auto folder =
        AdapterFolder::Open({.dir = folder_, .every = absl::Milliseconds(2)},
                            engine_.get(), &metrics_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    table_ = std::make_unique<AdapterTable>(engine_.get(), *std::move(folder),
                                            &metrics_);
    table_->AddUser([this](int32_t place) { return used_.contains(place); });
    table_->Update();
  }

  // By name, those that may be asked for.
  std::map<std::string, std::string> Identities() const {
    std::map<std::string, std::string> identities;
    for (const engine::AdapterInfo& info : table_->infos()) {
      if (!info.name.empty()) identities.emplace(info.name, info.identity);
    }
    return identities;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, identity] : Identities()) names.push_back(name);
    return names;
  }
  int32_t PlaceOf(const std::string& name) const {
    for (size_t i = 0; i < table_->infos().size(); ++i) {
      if (table_->infos()[i].name == name) return static_cast<int32_t>(i);
    }
    return -1;
  }
  // Turns until they are these.
  bool AwaitNames(const std::vector<std::string>& names) {
    return AwaitThat([&] {
      table_->Update();
      return Names() == names;
    });
  }
  double Metric(const std::string& line) const {
    const std::string text = metrics_.Text();
    const size_t at = text.find(absl::StrCat("\n", line));
    if (at == std::string::npos) return -1;
    return std::stod(text.substr(text.find(' ', at + 1)));
  }

  test::ScratchDir scratch_;
  std::string model_;
  const std::string folder_ = scratch_.path() + "/adapters";
  metrics::Metrics metrics_{{}};
  std::unique_ptr<engine::Engine> engine_;
  std::set<int32_t> used_;
  std::unique_ptr<AdapterTable> table_;
};

TEST_F(AdapterFolderTest, ThoseThatAreThereAreThereAtOnce) {
  Put("a", 1);
  Put("b", 2, /*rank=*/9);
  // None of these is an adapter.
  std::ofstream(Path("file")) << "x";
  fs::create_directory(Path("empty"));
  Put("with space", 3);
  fs::create_directory(Path("broken"));
  std::ofstream(Path("broken") + "/adapter_config.json") << "{";
  std::ofstream(Path("broken") + "/adapter_model.safetensors") << "";
  Open();
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
  EXPECT_EQ(table_->infos()[PlaceOf("b")].rank, 9);
  EXPECT_EQ(engine_->adapters().size(), 2u);
  EXPECT_EQ(Metric("baton_adapters "), 2);
  EXPECT_EQ(Metric("baton_adapter_changes_total{change=\"added\"}"), 2);
  EXPECT_EQ(Metric("baton_adapter_changes_total{change=\"failed\"}"), 2);
}

TEST_F(AdapterFolderTest, ComeAndGoWithTheirFolders) {
  Open();
  EXPECT_THAT(Names(), IsEmpty());
  Put("a", 1);
  EXPECT_TRUE(AwaitNames({"a"}));
  Put("b", 2);
  EXPECT_TRUE(AwaitNames({"a", "b"}));
  const int32_t place = PlaceOf("a");
  used_ = {place};
  Remove("a");
  EXPECT_TRUE(AwaitNames({"b"}));
  // Somebody is not done with it.
  EXPECT_FALSE(table_->WantsTurn());
  EXPECT_EQ(engine_->adapters()[place].name, "a");
  Put("c", 3);
  EXPECT_TRUE(AwaitNames({"b", "c"}));
  EXPECT_EQ(engine_->adapters()[place].name, "a");
  used_.clear();
  EXPECT_TRUE(table_->WantsTurn());
  table_->Update();
  EXPECT_FALSE(table_->WantsTurn());
  EXPECT_EQ(engine_->adapters()[place].name, "");
  Put("d", 4);
  EXPECT_TRUE(AwaitNames({"b", "c", "d"}));
  EXPECT_EQ(PlaceOf("d"), place);
  EXPECT_EQ(Metric("baton_adapters "), 3);
  EXPECT_EQ(Metric("baton_adapter_changes_total{change=\"dropped\"}"), 1);
}

TEST_F(AdapterFolderTest, AnotherOneOfTheSameNameTakesItsPlace) {
  Put("a", 1);
  Open();
  const std::string before = Identities()["a"];
  const int32_t place = PlaceOf("a");
  used_ = {place};
  fs::rename(Path("a"), scratch_.path() + "/old");
  Put("a", 2);
  EXPECT_TRUE(AwaitThat([&] {
    table_->Update();
    return Identities().contains("a") && Identities()["a"] != before;
  }));
  EXPECT_NE(PlaceOf("a"), place);
  // Those that run go on with theirs.
  EXPECT_EQ(engine_->adapters()[place].identity, before);
  used_.clear();
  table_->Update();
  EXPECT_EQ(engine_->adapters()[place].identity, "");
  // The same again is nothing new.
  const uint64_t version = table_->version();
  const std::string copy = Write("a", 2);
  fs::rename(Path("a"), scratch_.path() + "/older");
  fs::rename(copy, Path("a"));
  Put("z", 3);
  EXPECT_TRUE(AwaitNames({"a", "z"}));
  EXPECT_LE(table_->version(), version + 3);  // gone and back, at most
}

TEST_F(AdapterFolderTest, WhatIsWrittenBitByBitIsTakenWhenItIsWhole) {
  Open();
  const std::string whole = Write("a", 1);
  fs::create_directory(Path("a"));
  fs::copy(whole + "/adapter_config.json", Path("a"));
  // Half of it, for a while: it is told of once, and tried again.
  const std::string file = "/adapter_model.safetensors";
  std::ifstream from(whole + file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(from)), {});
  std::ofstream(Path("a") + file, std::ios::binary)
      << bytes.substr(0, bytes.size() / 2);
  const auto failed = [&] {
    return Metric("baton_adapter_changes_total{change=\"failed\"}");
  };
  EXPECT_TRUE(AwaitThat([&] { return failed() == 1; }));
  std::ofstream(Path("a") + file, std::ios::binary) << bytes;
  EXPECT_TRUE(AwaitNames({"a"}));
  EXPECT_LE(failed(), 2);
  // One that is broken in the place of one that is loaded leaves that.
  const std::string identity = Identities()["a"];
  std::ofstream(Path("a") + "/adapter_config.json") << "{}";
  const double before = failed();
  EXPECT_TRUE(AwaitThat([&] { return failed() > before; }));
  table_->Update();
  EXPECT_EQ(Identities()["a"], identity);
}

TEST_F(AdapterFolderTest, AFolderThatCannotBeReadChangesNothing) {
  Put("a", 1);
  Open();
  fs::rename(folder_, folder_ + "-away");
  // Until it has been missed: what comes in another place is not seen.
  const std::string other = Write("b", 2);
  fs::create_directory(folder_ + "-new");
  fs::rename(other, folder_ + "-new/b");
  table_->Update();
  EXPECT_THAT(Names(), ElementsAre("a"));
  fs::rename(folder_ + "-away", folder_);
  Put("c", 3);
  EXPECT_TRUE(AwaitNames({"a", "c"}));
  EXPECT_EQ(Metric("baton_adapter_changes_total{change=\"dropped\"}"), 0);
}

TEST_F(AdapterFolderTest, WhatTheEngineHasFromTheStartStays) {
  MakeEngine({{"a", Write("a", 1)}});
  Put("a", 2);
  Put("b", 3);
  Open();
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
  EXPECT_EQ(Identities()["a"], engine_->adapters()[0].identity);
  EXPECT_EQ(PlaceOf("a"), 0);
  EXPECT_EQ(table_->version(), 1u);
  Remove("a");
  Remove("b");
  EXPECT_TRUE(AwaitNames({"a"}));
}

// Also while one that is gone is still in use.
TEST_F(AdapterFolderTest, MoreThanThereArePlacesWaitForOne) {
  const std::string one = Write("a", 1, /*rank=*/1);
  const auto name = [](size_t i) { return absl::StrCat("a", 1000 + i); };
  for (size_t i = 0; i <= engine::kMaxAdapters; ++i) {
    fs::copy(one, Path(name(i)));
  }
  Open();
  ASSERT_EQ(Names().size(), engine::kMaxAdapters);
  EXPECT_EQ(PlaceOf(name(engine::kMaxAdapters)), -1);
  const int32_t place = PlaceOf(name(7));
  used_ = {place};
  Remove(name(7));
  EXPECT_TRUE(AwaitThat([&] {
    table_->Update();
    return PlaceOf(name(7)) == -1;
  }));
  EXPECT_EQ(Names().size(), engine::kMaxAdapters - 1);
  used_.clear();
  table_->Update();
  EXPECT_EQ(PlaceOf(name(engine::kMaxAdapters)), place);
  EXPECT_EQ(Names().size(), engine::kMaxAdapters);
}

TEST_F(AdapterFolderTest, RoutersAreToldOfAll) {
  Put("a", 1);
  Open();
  Outbox outbox;
  AdapterFeed feed(table_.get(), &outbox);
  feed.Flush();
  EXPECT_THAT(outbox.sent, IsEmpty());
  Put("b", 2);
  EXPECT_TRUE(AwaitNames({"a", "b"}));
  feed.Flush();
  feed.Flush();
  ASSERT_EQ(outbox.sent.size(), 1u);
  ASSERT_EQ(outbox.sent[0].second.adapters().adapters_size(), 2);
  EXPECT_EQ(outbox.sent[0].second.adapters().adapters(0).name(), "a");
  EXPECT_EQ(outbox.sent[0].second.adapters().adapters(1).identity(),
            Identities()["b"]);
  // Who comes later has an old hello.
  feed.AddRouter(7);
  ASSERT_EQ(outbox.sent.size(), 2u);
  EXPECT_EQ(outbox.sent[1].first, 7u);
  Remove("a");
  EXPECT_TRUE(AwaitNames({"b"}));
  feed.Flush();
  EXPECT_EQ(outbox.sent[2].second.adapters().adapters_size(), 1);
}

TEST_F(AdapterFolderTest, ThereMustBeAFolder) {
  MakeEngine();
  const auto folder =
      AdapterFolder::Open({.dir = folder_ + "/gone"}, engine_.get(), nullptr);
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(folder.status().message(), HasSubstr("--adapter-dir"));
}

}  // namespace
}  // namespace baton::worker::adapter_folder_test
