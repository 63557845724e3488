// UCX and memory of devices: what is said where it does not reach any.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"

namespace baton::kv_transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(UcxMemoryTest, SaysWhereUcxReachesNoDevice) {
  EXPECT_TRUE(CheckUcx("tcp", UcxMemory::kHost).ok());
  const absl::Status cuda = CheckUcx("tcp", UcxMemory::kCuda);
  if (cuda.ok()) GTEST_SKIP() << "this UCX reaches CUDA devices";
  EXPECT_EQ(cuda.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(cuda.message(),
              AllOf(HasSubstr("'tcp,cuda"), HasSubstr("built with CUDA")));
  EXPECT_EQ(CreateUcxTransport({.memory = UcxMemory::kCuda}).status(), cuda);
  // Who names transports of CUDA, or leaves some out, gets no others.
  for (const char* tls : {"tcp,cuda_copy", "all", "^rc"}) {
    EXPECT_THAT(CheckUcx(tls, UcxMemory::kCuda).message(),
                HasSubstr(absl::StrCat("'", tls, "'")));
  }
  setenv("UCX_TLS", "tcp", /*replace=*/1);
  EXPECT_THAT(CheckUcx("all", UcxMemory::kCuda).message(),
              HasSubstr("'tcp': UCX_TLS has to name cuda"));
  unsetenv("UCX_TLS");
}

TEST(UcxMemoryTest, TheDeviceIsSelectedFirst) {
  bool selected = false;
  auto transport =
      CreateUcxTransport({.select_device = [&selected] { selected = true; }});
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_TRUE(selected);
}

}  // namespace
}  // namespace baton::kv_transfer
