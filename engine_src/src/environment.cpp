#include "environment.h"

#include "error.h"

#include <cstring>

namespace moe {

namespace {

constexpr const char * prefix = "EPQ_";
constexpr const char * pager_switch = "EPQ_PAGER";
constexpr const char * require_switch = "EPQ_REQUIRE_PAGER";

[[noreturn]] void refuse(const std::string & message) { throw Error(ExitCode::usage, message); }

struct Variable {
    const char * name;
    const char * flag;
    bool is_switch;
    bool of_pager;  // does not apply with EPQ_PAGER=0
};

const std::vector<Variable> & table() {
    static const std::vector<Variable> variables = {
        {pager_switch, "--moe-stream", true, true},
        {"EPQ_RAM_BUDGET_MB", "--ram-budget-mb", false, true},
        {"EPQ_RESERVE_MB", "--reserve-mb", false, true},
        {"EPQ_EVICT", "--evict", false, true},
        {"EPQ_PREFETCH", "--prefetch", false, true},
        {"EPQ_STATS_FILE", "--stats", false, true},
        {"EPQ_EXPERT_USED", "--expert-used", false, false},
        {"EPQ_BENCH_NO_EOG", "--no-eog", true, false},
        {"EPQ_MOE_DUMP", "--moe-dump", false, false},
        {"EPQ_MOE_DUMP", "--moe-dump", false, false},
    };
    return variables;
}

bool is_on(const Variables & variables, const char * name) {
    const auto it = variables.find(name);
    if (it == variables.end() || it->second == "0") {
        return false;
    }
    if (it->second != "1") {
        refuse(std::string(name) + ": '" + it->second + "' is neither 0 nor 1");
    }
    return true;
}

void check_supported(const Variables & variables) {
    for (const auto & variable : variables) {
        bool known = variable.first == require_switch;
        for (const Variable & row : table()) {
            known = known || variable.first == row.name;
        }
        if (!known) {
            refuse(variable.first + ": this variable is not supported; unset it");
        }
    }
}

bool ends_flag(char next) { return next != '-' && (next < 'a' || next > 'z'); }

}  // namespace

Variables epq_variables(const char * const * environment) {
    Variables variables;
    for (; environment != nullptr && *environment != nullptr; ++environment) {
        const std::string entry = *environment;
        const size_t equals = entry.find('=');
        if (entry.compare(0, std::strlen(prefix), prefix) == 0 && equals != std::string::npos) {
            variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
        }
    }
    return variables;
}

std::vector<FlagDefault> flag_defaults(const Variables & variables, const GivenFlags & on_command_line) {
    check_supported(variables);
    const bool no_pager = variables.count(pager_switch) > 0 && !is_on(variables, pager_switch);
    if (no_pager) {
        for (const std::string & flag : on_command_line) {
            if (is_pager_flag(flag)) {
                refuse(flag + " cannot be combined with EPQ_PAGER=0: unset the variable, or leave out the flag");
            }
        }
    }
    std::vector<FlagDefault> defaults;
    for (const Variable & row : table()) {
        const auto it = variables.find(row.name);
        if (it == variables.end() || on_command_line.count(row.flag) > 0 || (no_pager && row.of_pager)) {
            continue;
        }
        if (!row.is_switch) {
            defaults.push_back({row.name, row.flag, it->second});
        } else if (is_on(variables, row.name)) {
            defaults.push_back({row.name, row.flag, ""});
        }
    }
    return defaults;
}

std::string name_variables(std::string message, const std::vector<FlagDefault> & defaults) {
    for (const FlagDefault & given : defaults) {
        const std::string origin = " (from " + given.variable + ")";
        if (message.find(origin) != std::string::npos) {
            continue;  // said where it was thrown
        }
        for (size_t at = message.find(given.flag); at != std::string::npos; at = message.find(given.flag, at)) {
            at += given.flag.size();
            if (at == message.size() || ends_flag(message[at])) {
                message.insert(at, origin);
                break;  // once is enough
            }
        }
    }
    return message;
}

void check_required_pager(const Variables & variables, bool streams) {
    if (is_on(variables, require_switch) && !streams) {
        refuse(std::string(require_switch) + "=1, but this run would be plain: give --moe-stream or --ram-budget-mb N" +
               (variables.count(pager_switch) > 0 ? ", and unset EPQ_PAGER" : ""));
    }
}

}  // namespace moe
