// The shared library exports exactly the functions that the header declares.
#include <cstdio>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace {

std::set<std::string> declared() {
    std::ifstream file(XP_CLIENT_HEADER);
    std::stringstream text;
    text << file.rdbuf();
    const std::string header = text.str();
    const std::regex function(R"(XP_API[^;(]*?\b(xp_\w+)\()");
    std::set<std::string> names;
    for (std::sregex_iterator it(header.begin(), header.end(), function), end; it != end; ++it) {
        names.insert((*it)[1]);
    }
    return names;
}

std::set<std::string> exported() {
    std::set<std::string> names;
    FILE* nm = ::popen(XP_NM " -D --defined-only " XP_CLIENT_LIBRARY, "r");
    EXPECT_NE(nm, nullptr);
    char line[1024];
    while (nm && std::fgets(line, sizeof line, nm)) {
        std::istringstream words(line);
        std::string address;
        std::string type;
        std::string name;
        words >> address >> type >> name;
        // The version node itself is an absolute symbol.
        if (type != "A") names.insert(name.substr(0, name.find('@')));
    }
    EXPECT_EQ(nm ? ::pclose(nm) : -1, 0);
    return names;
}

TEST(SharedLibrary, ExportsExactlyTheFunctionsOfTheHeader) {
    EXPECT_GT(declared().size(), 30u);
    EXPECT_EQ(exported(), declared());
}

}  // namespace
