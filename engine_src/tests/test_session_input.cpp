// The thread that reads requests: order, cancellation, and how it ends.
#include "session_input.h"

#include "check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

using namespace moe;

namespace {

class Pipe {
public:
    Pipe() { CHECK(pipe(ends_) == 0); }
    ~Pipe() {
        end();
        close(ends_[0]);
    }
    Pipe(const Pipe &) = delete;
    Pipe & operator=(const Pipe &) = delete;

    void send(const std::string & bytes) const {
        for (size_t done = 0; done < bytes.size();) {
            const ssize_t n = write(ends_[1], bytes.data() + done, bytes.size() - done);
            CHECK(n > 0);
            done += static_cast<size_t>(std::max<ssize_t>(n, 1));
        }
    }
    void end() {
        if (open_) {
            close(ends_[1]);
            open_ = false;
        }
    }
    int reader() const { return ends_[0]; }

private:
    int ends_[2] = {-1, -1};
    bool open_ = true;
};

std::string generate(int id) { return "{\"cmd\":\"generate\",\"id\":" + std::to_string(id) + ",\"prompt\":\"p\"}\n"; }
const std::string cancel = "{\"cmd\":\"cancel\"}\n";

SessionInput::Generation next_generation(SessionInput & input) {
    return std::get<SessionInput::Generation>(input.next());
}

BadRequest next_bad(SessionInput & input) { return std::get<BadRequest>(input.next()); }

std::string next_end(SessionInput & input) { return std::get<SessionInput::End>(input.next()).failure; }

void wait_for(const std::atomic<bool> & flag) {
    while (!flag) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void lines_come_in_order_whatever_the_pieces() {
    Pipe pipe;
    SessionInput input(pipe.reader());
    std::thread sender([&] {
        for (const char c : generate(1) + "oops\n\n \r\n" + generate(2)) {
            pipe.send(std::string(1, c));
        }
        pipe.send("{\"cmd\":\"generate\",\"id\":3,\"prompt\":\"no newline\"}");
        pipe.end();
    });
    CHECK(next_generation(input).request.id == 1);
    CHECK(next_bad(input).why.find("invalid JSON") == 0);
    CHECK(next_generation(input).request.id == 2);
    CHECK(next_generation(input).request.prompt == "no newline");
    CHECK(next_end(input).empty());
    sender.join();
}

void close_ends_and_what_follows_is_not_read() {
    Pipe pipe;
    SessionInput input(pipe.reader());
    pipe.send(generate(1) + "{\"cmd\":\"close\"}\n" + generate(2));
    CHECK(next_generation(input).request.id == 1);
    CHECK(next_end(input).empty());
}

void cancel_reaches_all_that_came_before_it() {
    Pipe pipe;
    SessionInput input(pipe.reader());
    pipe.send(generate(1));
    const auto running = next_generation(input);
    CHECK(!*running.cancelled);
    pipe.send(generate(2) + cancel + generate(3));
    wait_for(*running.cancelled);
    const auto queued = next_generation(input);
    CHECK(queued.request.id == 2 && *queued.cancelled);
    const auto later = next_generation(input);
    CHECK(later.request.id == 3 && !*later.cancelled);
}

void cancel_with_an_id_reaches_that_one_only() {
    Pipe pipe;
    SessionInput input(pipe.reader());
    pipe.send(generate(1) + generate(2) + generate(3));
    pipe.send("{\"cmd\":\"cancel\",\"id\":2}\n{\"cmd\":\"cancel\",\"id\":1}\n");
    const auto first = next_generation(input);
    wait_for(*first.cancelled);
    CHECK(*next_generation(input).cancelled);
    CHECK(!*next_generation(input).cancelled);
}

void a_generation_that_is_done_is_not_cancelled() {
    Pipe pipe;
    SessionInput input(pipe.reader());
    pipe.send(generate(1));
    const auto done = next_generation(input);
    pipe.send("mark\n");
    next_bad(input);  // whoever asks for the next event is done with the last
    pipe.send(cancel + "mark\n");
    next_bad(input);
    CHECK(!*done.cancelled);
}

void a_line_without_end_is_refused_and_the_next_one_read() {
    Pipe pipe;
    SessionInput input(pipe.reader());
    const std::string head = "{\"cmd\":\"generate\",\"id\":1,\"prompt\":\"";
    std::thread sender([&] {
        const std::string longest(SessionInput::kMaxLine - head.size() - 2, 'x');
        pipe.send(head + longest + "\"}\n" + head + longest + "x\"}\n" + std::string(3 * SessionInput::kMaxLine, '{') +
                  "\n" + generate(2));
    });
    CHECK(next_generation(input).request.prompt.size() == SessionInput::kMaxLine - head.size() - 2);
    for (int i = 0; i < 2; ++i) {
        CHECK(next_bad(input).why.find("longer than 1048576 bytes") != std::string::npos);
    }
    CHECK(next_generation(input).request.id == 2);
    sender.join();
}

void it_ends_while_it_waits() {
    Pipe pipe;
    for (int round = 0; round < 20; ++round) {
        SessionInput input(pipe.reader());
        pipe.send(generate(round));
        CHECK(next_generation(input).request.id == static_cast<uint64_t>(round));
    }
}

void what_cannot_be_read_is_told() {
    const int directory = open("/", O_RDONLY | O_DIRECTORY);
    {
        SessionInput input(directory);
        CHECK(next_end(input).find("cannot read standard input: ") == 0);
    }
    close(directory);
}

}  // namespace

int main() {
    check::run("lines come in order, whatever the pieces", lines_come_in_order_whatever_the_pieces);
    check::run("close ends, and what follows is not read", close_ends_and_what_follows_is_not_read);
    check::run("cancel reaches all that came before it", cancel_reaches_all_that_came_before_it);
    check::run("cancel with an id reaches that one only", cancel_with_an_id_reaches_that_one_only);
    check::run("a generation that is done is not cancelled", a_generation_that_is_done_is_not_cancelled);
    check::run("a line without end is refused, and the next one read",
               a_line_without_end_is_refused_and_the_next_one_read);
    check::run("it ends while it waits", it_ends_while_it_waits);
    check::run("what cannot be read is told", what_cannot_be_read_is_told);
    return check::result();
}
