// a2a-go v0.3.x. It speaks 0.3 over JSON-RPC and gRPC; it has no HTTP+JSON and no ListTasks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2aclient"
	"github.com/a2aproject/a2a-go/a2aclient/agentcard"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const patience = 40 * time.Second

var (
	base, binding, hook = os.Args[1], os.Args[2], os.Args[3]
	client              *a2aclient.Client
	done                *a2a.Task
)

func request(text string, blocking bool) *a2a.MessageSendParams {
	message := a2a.NewMessage(a2a.MessageRoleUser, a2a.TextPart{Text: text})
	return &a2a.MessageSendParams{Message: message, Config: &a2a.MessageSendConfig{Blocking: &blocking}}
}

func task(ctx context.Context, text string, blocking bool) (*a2a.Task, error) {
	result, err := client.SendMessage(ctx, request(text, blocking))
	if err != nil {
		return nil, err
	}
	task, ok := result.(*a2a.Task)
	if !ok {
		return nil, fmt.Errorf("got %T", result)
	}
	return task, nil
}

func all(events iter.Seq2[a2a.Event, error]) ([]a2a.Event, error) {
	var seen []a2a.Event
	for event, err := range events {
		if err != nil {
			return nil, fmt.Errorf("after %d events: %w", len(seen), err)
		}
		seen = append(seen, event)
	}
	if len(seen) == 0 {
		return nil, errors.New("no events")
	}
	return seen, nil
}

func endsCompleted(seen []a2a.Event) error {
	last, ok := seen[len(seen)-1].(*a2a.TaskStatusUpdateEvent)
	if _, first := seen[0].(*a2a.Task); !first || !ok || last.Status.State != a2a.TaskStateCompleted || !last.Final {
		return fmt.Errorf("first %T, last %+v", seen[0], seen[len(seen)-1])
	}
	return nil
}

func send(ctx context.Context) error {
	card, err := agentcard.DefaultResolver.Resolve(ctx, base)
	if err != nil {
		return err
	}
	options := []a2aclient.FactoryOption{a2aclient.WithDefaultsDisabled()}
	if binding == "GRPC" {
		options = append(options, a2aclient.WithGRPCTransport(grpc.WithTransportCredentials(insecure.NewCredentials())))
	} else {
		options = append(options, a2aclient.WithJSONRPCTransport(nil))
	}
	if client, err = a2aclient.NewFromCard(ctx, card, options...); err != nil {
		return err
	}
	if done, err = task(ctx, "tck-complete-task hello", true); err != nil {
		return err
	}
	if done.Status.State != a2a.TaskStateCompleted || len(done.Artifacts) != 1 {
		return fmt.Errorf("got %+v", done)
	}
	if text, ok := done.Artifacts[0].Parts[0].(a2a.TextPart); !ok || text.Text != "Hello from the agent" {
		return fmt.Errorf("got %+v", done.Artifacts[0])
	}
	return nil
}

func stream(ctx context.Context) error {
	seen, err := all(client.SendStreamingMessage(ctx, request("tck-stream-basic go", true)))
	if err != nil {
		return err
	}
	for _, event := range seen {
		if _, ok := event.(*a2a.TaskArtifactUpdateEvent); ok {
			return endsCompleted(seen)
		}
	}
	return fmt.Errorf("no artifact in %d events", len(seen))
}

func get(ctx context.Context) error {
	got, err := client.GetTask(ctx, &a2a.TaskQueryParams{ID: done.ID})
	if err == nil && (got.ID != done.ID || got.Status.State != a2a.TaskStateCompleted) {
		err = fmt.Errorf("got %+v", got)
	}
	return err
}

func cancel(ctx context.Context) error {
	started, err := task(ctx, "tck-cancel wait", false)
	if err != nil {
		return err
	}
	ended, err := client.CancelTask(ctx, &a2a.TaskIDParams{ID: started.ID})
	if err == nil && ended.Status.State != a2a.TaskStateCanceled {
		err = fmt.Errorf("got %+v", ended)
	}
	return err
}

func subscribe(ctx context.Context) error {
	started, err := task(ctx, "tck-long-running work", false)
	if err != nil {
		return err
	}
	seen, err := all(client.ResubscribeToTask(ctx, &a2a.TaskIDParams{ID: started.ID}))
	if err != nil {
		return err
	}
	return endsCompleted(seen)
}

func push(ctx context.Context) error {
	parked, err := task(ctx, "tck-input-required ask", true)
	if err != nil {
		return err
	}
	config := a2a.PushConfig{ID: "mine", URL: hook, Token: "t0k3n"}
	made, err := client.SetTaskPushConfig(ctx, &a2a.TaskPushConfig{TaskID: parked.ID, Config: config})
	if err != nil || made.Config.URL != hook {
		return fmt.Errorf("set: %+v %w", made, err)
	}
	got, err := client.GetTaskPushConfig(ctx, &a2a.GetTaskPushConfigParams{TaskID: parked.ID, ConfigID: "mine"})
	if err != nil || got.Config.URL != hook {
		return fmt.Errorf("get: %+v %w", got, err)
	}
	listed, err := client.ListTaskPushConfig(ctx, &a2a.ListTaskPushConfigParams{TaskID: parked.ID})
	if err != nil || len(listed) != 1 {
		return fmt.Errorf("list: %+v %w", listed, err)
	}
	if err = client.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigParams{TaskID: parked.ID, ConfigID: "mine"}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	listed, err = client.ListTaskPushConfig(ctx, &a2a.ListTaskPushConfigParams{TaskID: parked.ID})
	if err != nil || len(listed) != 0 {
		return fmt.Errorf("list after delete: %+v %w", listed, err)
	}
	return nil
}

func unknown(ctx context.Context) error {
	_, err := client.GetTask(ctx, &a2a.TaskQueryParams{ID: a2a.NewTaskID()})
	// Over gRPC the library hands on the status as it is.
	if !errors.Is(err, a2a.ErrTaskNotFound) && status.Code(err) != codes.NotFound {
		return fmt.Errorf("got %w", err)
	}
	return nil
}

func main() {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	for _, operation := range []struct {
		name string
		run  func(context.Context) error
	}{{"send", send}, {"stream", stream}, {"get", get}, {"cancel", cancel}, {"subscribe", subscribe}, {"push", push}, {"error", unknown}} {
		err := guarded(ctx, operation.run)
		detail := ""
		if err != nil {
			detail = err.Error()
		}
		line, _ := json.Marshal(map[string]any{"op": operation.name, "ok": err == nil, "detail": detail})
		fmt.Println(string(line))
	}
}

// guarded turns a panic into an error, so that each operation has its line.
func guarded(ctx context.Context, run func(context.Context) error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return run(ctx)
}
