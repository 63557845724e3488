// A worker link over a gRPC stream.
#pragma once

#include <memory>
#include <string>

#include "router/worker_link.h"

namespace baton::router {

// A MakeWorkerLink. The sink is called on gRPC's threads.
std::unique_ptr<WorkerLink> MakeGrpcWorkerLink(int link,
                                               const std::string& address,
                                               v1::RouterMessage hello,
                                               WorkerLink::Sink sink);

}  // namespace baton::router
