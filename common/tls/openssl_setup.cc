#include "common/tls/openssl_setup.h"

#include <openssl/crypto.h>

#include "common/log.h"

namespace baton::tls {

void KeepOpenSslAtExit() {
  if (OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1) {
    LOG(FATAL) << "OpenSSL cannot be initialized";
  }
}

}  // namespace baton::tls
