#include "dry_run.h"

#include "decode.h"
#include "error.h"
#include "llama_session.h"
#include "model_facts.h"
#include "planned_texts.h"
#include "process.h"

#include "ggml-cpu.h"
#include "llama-ext.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <type_traits>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace moe {

namespace {

// What the child has to say: plain bytes, which a pipe takes in one piece.
struct Answer {
    bool ok = false;
    int32_t exit_code = 0;  // when not ok
    char message[1024] = {};
    DryRun found;
};
static_assert(std::is_trivially_copyable_v<Answer>);

// Largest kernel scratch of a graph for `n_tokens`: the CPU backend keeps one such buffer.
uint64_t scratch_bytes(llama_context * context, uint32_t n_tokens, uint32_t n_outputs, int threads) {
    ggml_cgraph * graph = llama_graph_reserve(context, n_tokens, 1, n_outputs);
    return graph ? ggml_graph_plan(graph, threads, nullptr).work_size : 0;
}

// llama.cpp reports a graph buffer once for each backend, also where several backends allocate from one buffer type
// and so share one buffer: the paging device's results lie in the CPU's memory.
uint64_t backends_sharing(ggml_backend_buffer_type_t type) {
    uint64_t count = 0;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        count += ggml_backend_dev_buffer_type(ggml_backend_dev_get(i)) == type ? 1 : 0;
    }
    return std::max<uint64_t>(count, 1);
}

DryRun set_up(const Options & options, const ModelFacts & facts, const std::string & prompt, Pager * pager) {
    DryRun out;
    const ModelPtr model = load_model(options, facts.arch, pager, LoadDepth::metadata_only);
    const ContextPtr context = make_context(model.get(), options);
    for (const auto & [type, part] : llama_get_memory_breakdown(context.get())) {
        out.kv_bytes += part.context;
        out.graph_bytes += part.compute / backends_sharing(type);
        // Only weights of the CPU's own type are used where the file is mapped; the others are copies of it.
        if (options.repack && type != ggml_backend_cpu_buffer_type()) {
            out.repacked_bytes += part.model;
        }
    }
    const llama_vocab * vocab = llama_model_get_vocab(model.get());
    const uint32_t n_outputs = max_outputs(options);
    out.logits_bytes = uint64_t{n_outputs - 1} * static_cast<uint64_t>(llama_vocab_n_tokens(vocab)) * sizeof(float);
    if (!prompt.empty()) {
        out.n_prompt = static_cast<uint32_t>(tokenize_input(vocab, options, prompt).size());
    }
    rehearse_texts(options, llama_model_get_vocab(model.get()));
    out.base_bytes = data_bytes().value_or(0);  // before the scratch probe, which allocates the compute buffers
    out.scratch_bytes = std::max(scratch_bytes(context.get(), llama_n_ubatch(context.get()), n_outputs, options.threads),
                                 scratch_bytes(context.get(), 1, 1, options.threads));
    return out;
}

// What the child has to say comes through the pipe; llama.cpp's and ggml's own words would only confuse. Not so
// under a sanitizer, whose reports must be seen.
void quiet_stderr() {
#ifndef MOE_SANITIZED
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDERR_FILENO);
        close(null);
    }
#endif
}

[[noreturn]] void child(int fd, const Options & options, const ModelFacts & facts, const std::string & prompt,
                        Pager * pager) {
    // The plan must be found out under any limit, so lift it here where that is allowed. The child allocates
    // neither weights nor caches.
    rlimit limit{};
    if (getrlimit(RLIMIT_DATA, &limit) == 0) {
        rlimit lifted = {RLIM_INFINITY, RLIM_INFINITY};
        if (setrlimit(RLIMIT_DATA, &lifted) != 0) {
            limit.rlim_cur = limit.rlim_max;
            setrlimit(RLIMIT_DATA, &limit);
        }
    }
    quiet_stderr();
    // Out of memory has one meaning here, wherever it happens and whoever would catch the exception.
    std::set_new_handler([] { _exit(1); });
#ifdef __GLIBC__
    // Memory freed meanwhile stays in the heap, so that its size at the end is the peak that loading passes through.
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
#endif
    Answer answer;
    const auto failed = [&](ExitCode code, const char * message) {
        answer.exit_code = static_cast<int32_t>(code);
        std::strncpy(answer.message, message, sizeof answer.message - 1);
    };
    try {
        answer.found = set_up(options, facts, prompt, pager);
        answer.ok = true;
    } catch (const Error & error) {
        failed(error.code(), error.what());
    } catch (const std::exception & error) {
        failed(ExitCode::other, error.what());
    }
    const bool sent = write(fd, &answer, sizeof answer) == static_cast<ssize_t>(sizeof answer);
    _exit(sent ? 0 : 1);
}

}  // namespace

std::optional<DryRun> dry_run(const Options & options, const ModelFacts & facts, const std::string & prompt,
                              Pager * pager) {
    int ends[2];
    if (pipe(ends) != 0) {
        throw Error(ExitCode::other, std::string("cannot create a pipe: ") + std::strerror(errno));
    }
    const pid_t pid = fork();
    if (pid < 0) {
        const int error = errno;
        close(ends[0]);
        close(ends[1]);
        throw Error(ExitCode::other, std::string("cannot fork to plan memory: ") + std::strerror(error));
    }
    if (pid == 0) {
        close(ends[0]);
        child(ends[1], options, facts, prompt, pager);
    }
    close(ends[1]);

    Answer answer;
    size_t got = 0;
    while (got < sizeof answer) {
        const ssize_t n = read(ends[0], reinterpret_cast<char *>(&answer) + got, sizeof answer - got);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        got += static_cast<size_t>(n);
    }
    close(ends[0]);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (got != sizeof answer) {
        return std::nullopt;
    }
    if (!answer.ok) {
        throw Error(static_cast<ExitCode>(answer.exit_code), answer.message);
    }
    return answer.found;
}

}  // namespace moe
