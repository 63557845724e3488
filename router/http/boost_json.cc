// Boost.JSON is compiled here, once: Debian's package of Boost 1.81 has headers
// for it and no library of its own among what Baton installs.
#include <boost/json/src.hpp>
