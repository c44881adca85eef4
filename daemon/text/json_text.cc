#include "daemon/text/json_text.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include <nlohmann/json.hpp>

namespace xp {

namespace {

// Python's repr() of a float: fixed where the decimal exponent is from -4 to 15.
std::string float_text(double value) {
    char buffer[64];
    const auto scientific =
        std::to_chars(buffer, std::end(buffer), value, std::chars_format::scientific);
    std::string text(buffer, scientific.ptr);
    const int exponent = std::stoi(text.substr(text.find('e') + 1));
    if (exponent < -4 || exponent > 15) return text;
    const auto fixed = std::to_chars(buffer, std::end(buffer), value, std::chars_format::fixed);
    text.assign(buffer, fixed.ptr);
    if (text.find('.') == text.npos) text += ".0";
    return text;
}

// Takes the parser's events and writes values from the inside out.
class Rewriter final : public nlohmann::json_sax<nlohmann::json> {
public:
    explicit Rewriter(JsonStyle style) : style_(style) {}

    bool null() override { return add("null", "null"); }
    bool boolean(bool value) override { return add("boolean", value ? "true" : "false"); }
    bool number_integer(number_integer_t value) override {
        return add("number", std::to_string(value));
    }
    bool number_unsigned(number_unsigned_t value) override {
        return add("number", std::to_string(value));
    }
    bool number_float(number_float_t value, const string_t& digits) override {
        const bool integer = digits.find_first_of(".eE") == digits.npos;
        return add("number", integer ? digits : float_text(value));
    }
    bool string(string_t& value) override { return add("string", json_string(value), value); }
    bool binary(binary_t&) override { return false; }
    bool start_object(size_t) override { return open(); }
    bool key(string_t& value) override {
        open_.back().key = value;
        return true;
    }
    bool end_object() override { return close("object", '{', '}'); }
    bool start_array(size_t) override { return open(); }
    bool end_array() override { return close("array", '[', ']'); }
    bool parse_error(size_t position, const std::string&,
                     const nlohmann::detail::exception&) override {
        error = fmt::format("it is no JSON: byte {} does not belong there", position);
        return false;
    }

    JsonText result;
    std::string error;

private:
    struct Open {
        std::string key;  // of the member to come
        std::vector<JsonMember> members;
    };

    bool open() {
        if (open_.size() == kMaxJsonDepth) {
            error = fmt::format("it is nested deeper than {} levels", kMaxJsonDepth);
            return false;
        }
        open_.emplace_back();
        return true;
    }

    bool add(std::string_view type, std::string text, std::string plain = {}) {
        if (open_.empty()) {
            result.type = type;
            result.text = std::move(text);
            return true;
        }
        Open& parent = open_.back();
        if (type != "string") plain = text;
        parent.members.push_back(
            {std::exchange(parent.key, {}), type, std::move(text), std::move(plain)});
        return true;
    }

    bool close(std::string_view type, char begin, char end) {
        std::vector<JsonMember> members = std::move(open_.back().members);
        open_.pop_back();
        const bool object = begin == '{';
        if (object) drop_repeated(members);
        if (object && style_ == JsonStyle::kSortedCompact) {
            std::ranges::sort(members, {}, &JsonMember::key);
        }
        const bool spaced = style_ == JsonStyle::kSpaced;
        std::string text(1, begin);
        for (const JsonMember& member : members) {
            if (text.size() > 1) text += spaced ? ", " : ",";
            if (object) text += json_string(member.key) + (spaced ? ": " : ":");
            text += member.text;
        }
        text += end;
        if (open_.empty() && object) result.members = std::move(members);
        return add(type, std::move(text));
    }

    static void drop_repeated(std::vector<JsonMember>& members) {
        std::unordered_map<std::string, size_t> places;
        size_t n = 0;
        for (JsonMember& member : members) {
            const auto [place, fresh] = places.try_emplace(member.key, n);
            JsonMember& kept = members[place->second];
            if (fresh) ++n;
            if (&kept != &member) kept = std::move(member);
        }
        members.resize(n);
    }

    const JsonStyle style_;
    std::vector<Open> open_;
};

}  // namespace

Result<JsonText> rewrite_json(std::string_view json, JsonStyle style) {
    Rewriter rewriter(style);
    if (!nlohmann::json::sax_parse(json, &rewriter)) {
        return make_error(ErrorCode::kInvalidArgument, "{}", rewriter.error);
    }
    return std::move(rewriter.result);
}

std::string json_string(std::string_view text) { return nlohmann::json(text).dump(); }

}  // namespace xp
